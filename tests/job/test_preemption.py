"""Journals of jobs whose samples make room for each other: the same, however they come back."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sharegen.engine.schedule import admission
from sharegen.engine.schedule.swapping import SwapCost
from sharegen.job.interrupt import Interrupted
from sharegen.job.run_job import Watcher, run_job
from sharegen.workload.configuration import resolve
from tests.engine.jobs import ends_now
from tests.tiny import save_tiny_model


class _StopsThere(Watcher):
    """Sends this process a signal as soon as some sample lies in host memory."""

    def sampling(self, stats: Any, *counts: Any) -> Any:
        self.stats = stats
        return self

    def __enter__(self) -> _StopsThere:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def advance(self, tokens: int, problem_done: bool) -> None:
        if self.stats.swaps:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_journals_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission.Admission, "survival", ends_now)
    monkeypatch.setattr(SwapCost, "of", lambda *_: 0.0)
    model = save_tiny_model(tmp_path / "model")
    rows = [{"prompt": f"Tom has {n} apples and buys {n + 1} more. How many?"} for n in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(name: str, watcher: Watcher | None = None, **machine: Any) -> tuple[list[str], Any]:
        given = {
            "model": str(model),
            "sampling": {"samples": 8, "max_tokens": 40, "temperature": 1.0},
            "machine": {"device": "cpu", "kv_cache_memory": 1 << 17} | machine,
        }
        job = resolve("prompts", str(tmp_path / "rows.jsonl"), given)
        run_job(job, tmp_path / name, **({} if watcher is None else {"watcher": watcher}))
        told = json.loads((tmp_path / ".sharegen" / name.replace("jsonl", "run.json")).read_text())
        return sorted((tmp_path / name).read_text().splitlines()), told["stats"]

    whole, stats = run("whole.jsonl", kv_cache_memory=1 << 22)
    assert stats["preemptions"] == 0
    again, stats = run("again.jsonl")
    assert again == whole and stats["tokens_replayed"] > 0 == stats["swaps"]
    swapped, stats = run("swapped.jsonl", swap_space=0.01)
    assert swapped == whole and stats["swaps"] > 0 == stats["tokens_replayed"]
    with pytest.raises(Interrupted):
        run("stopped.jsonl", _StopsThere(), swap_space=0.01)
    stopped = sorted((tmp_path / "stopped.jsonl").read_text().splitlines())
    assert set(stopped) < set(whole)
    resumed, _ = run("stopped.jsonl", swap_space=0.01)
    assert resumed == whole
