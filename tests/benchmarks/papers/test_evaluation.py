"""Whole jobs by how much is shared: figure 7 and table 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.papers import evaluation, hydragen_apps, hydragen_gsm8k
from benchmarks.papers.evaluation import Evaluation, bars, evaluate
from benchmarks.papers.experiment import Settings
from sharegen.bench import decode
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import Workload
from sharegen.engine.engine import Engine
from tests.engine.tiny_models import tiny_config


def test_jobs_are_the_papers() -> None:
    apps, gsm8k = hydragen_apps._JOB, hydragen_gsm8k._JOB
    assert (apps.prefix, apps.problems, apps.samples, apps.output) == (2400, 120, 128, 512)
    assert (gsm8k.problems, gsm8k.samples) == (1319, 40)


@pytest.mark.slow
def test_no_graph_is_left_to_the_timed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph is of tables of one width: the short job before must have the long one's."""
    widths = []

    def run_job(engine: Engine, *job: Any) -> tuple[float, int]:
        found = decode.run_job(engine, *job)
        widths.append(engine.runner.block_tables.shape[1])
        return found

    monkeypatch.setattr(evaluation, "run_job", run_job)
    tiny_config("llama").save_pretrained(tmp_path)
    engines = Engines(str(tmp_path), "cpu", torch.float32, kv_cache_memory=1 << 18)
    evaluation._timed(engines, Workload(20, 4, 1, 2, 18), 2, 2, 1)
    assert widths == [2, 2]


@pytest.mark.slow
def test_sharing_leaves_room_for_a_larger_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In so little memory 3 rows of 64 + 8 tokens fit that share nothing, of 4 asked for."""
    tiny_config("llama").save_pretrained(tmp_path)
    job = Workload(40, 24, 3, 4, 8)
    settings = Settings(torch.device("cpu"), torch.float32, repeats=2)
    found = list(evaluate(Evaluation(str(tmp_path), job, 0, 4, 1 << 16), settings))
    first, same, larger = found
    assert [row["levels"] for row in found] == [0, 2, 2]
    assert first["batch"] == same["batch"] < 4 and larger["batch"] > same["batch"]
    assert f"a batch of 4 does not fit; the largest that does is {first['batch']}" in (
        capsys.readouterr().err
    )
    for row in found:
        assert row["speedup"] == first["seconds"] / row["seconds"]
        assert row["tokens_per_second"] == pytest.approx(3 * 4 * 8 / row["seconds"])
    [picture] = bars(found)
    assert len(picture.bars) == 3
