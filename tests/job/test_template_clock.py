"""A chat template that writes the date writes that of the job's first run, in all its runs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.shard import Shard
from sharegen.errors import JournalError, UsageError
from sharegen.job.dry_run import preview_prompt
from sharegen.job.run_job import run_job
from sharegen.results.journal.pool import pool
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import Configuration, resolve
from tests.tiny import save_tiny_model

TEMPLATE = "{{ strftime_now('%d %b %Y') }}: {% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def configure(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    rows = [{"messages": [{"role": "user", "content": f"What is {n}?"}]} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def configured(samples: int = 1, **chat: Any) -> Configuration:
        flags: dict[str, Any] = {
            "model": str(model),
            "chat": chat,
            "sampling": {"samples": samples, "max_tokens": 3},
            "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
        }
        return resolve("prompts", str(tmp_path / "rows.jsonl"), flags)

    return configured


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> Any:
    def is_day(day: int, hour: int = 9) -> None:
        moment = datetime(2026, 11, day, hour)
        monkeypatch.setattr(Clock, "now", classmethod(lambda cls: cls(moment)))

    is_day(26)
    return is_day


def clock_in(path: Path) -> str | None:
    run = RunFile.read(run_file_path(path))
    assert run is not None
    return run.fingerprints.get("clock")


def texts(path: Path) -> dict[str, set[str]]:
    """What the texts of each problem are known by."""
    found: dict[str, set[str]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        found.setdefault(line["problem_id"], set()).add(line["text_hash"])
    return found


def test_a_continued_job_asks_what_its_first_run_asked(
    configure: Any, today: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = run_job(configure()).path
    assert path.parent.name == "runs" and clock_in(path) == "2026-11-26"
    assert "the chat template writes the date: 2026-11-26 in all prompts" in caplog.text
    assert preview_prompt(configure()).text == "26 Nov 2026: What is 0?"
    today(27)
    assert (
        preview_prompt(configure(samples=2)).text == "26 Nov 2026: What is 0?"
    )  # as the run will ask
    again = run_job(configure(samples=2))
    assert again.path == path and again.drawn == 4 and clock_in(path) == "2026-11-26"
    assert all(len(hashes) == 1 for hashes in texts(path).values())
    assert run_job(configure(samples=2)).drawn == 0
    anew = run_job(configure(samples=2), path, overwrite=True)
    assert anew.drawn == 8 and clock_in(path) == "2026-11-27"


@pytest.mark.turn(4)
def test_shards_have_the_day_of_the_first_beside_them_or_the_one_that_is_set(
    configure: Any, today: Any, tmp_path: Path
) -> None:
    first = run_job(configure(), tmp_path / "a.jsonl", shard=Shard(1, 2)).path
    today(27)
    second = run_job(configure(), tmp_path / "a.jsonl", shard=Shard(2, 2)).path
    assert clock_in(first) == clock_in(second) == "2026-11-26"
    assert len(pool([tmp_path / "a.jsonl"])) == 1
    whole = run_job(configure(samples=2), tmp_path / "a.jsonl")
    assert whole.drawn == 4 and clock_in(whole.path) == "2026-11-26"
    (tmp_path / "b").mkdir()  # another machine, which sees nothing of the others
    apart = run_job(configure(), tmp_path / "b" / "a.jsonl", shard=Shard(2, 2)).path
    assert clock_in(apart) == "2026-11-27"
    found = pool([first, apart])
    assert len(found) == 2  # counted separately, and the log says why
    told = run_job(configure(date="2026-11-26"), tmp_path / "c.jsonl", shard=Shard(2, 2)).path
    assert clock_in(told) == "2026-11-26" and texts(told) == texts(second)


@pytest.mark.parametrize("samples", [1, 2])  # finished, and not
def test_another_day_is_refused_by_name(
    configure: Any, today: Any, tmp_path: Path, samples: int
) -> None:
    run_job(configure(), tmp_path / "a.jsonl")
    with pytest.raises(JournalError, match=r"another time, which the chat template writes \(f"):
        run_job(configure(samples, date="2026-11-30"), tmp_path / "a.jsonl")


def test_another_text_of_the_same_turns_is_refused_by_its_problem(
    configure: Any, today: Any, tmp_path: Path
) -> None:
    path = run_job(configure(), tmp_path / "a.jsonl").path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, "text_hash": "0" * 16}) + "\n" for line in lines))
    with pytest.raises(JournalError, match=r"problem '\d', and 3 more: its chat template makes"):
        run_job(configure(2), path)


def test_a_template_that_writes_the_time_is_told_and_frozen(
    configure: Any, today: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "timed.jinja").write_text("{{ strftime_now('%H:%M') }} {{ messages[0].content }}")
    chat = {"template": str(tmp_path / "timed.jinja")}
    path = run_job(configure(**chat)).path
    assert "the chat template writes the time of day: 2026-11-26T09:00:00" in caplog.text
    today(26, hour=11)
    assert run_job(configure(2, **chat)).drawn == 4
    assert clock_in(path) == "2026-11-26T09:00:00"
    assert preview_prompt(configure(**chat)).text == "09:00 What is 0?"


def test_a_date_that_no_template_asks_for_is_refused(configure: Any, tmp_path: Path) -> None:
    (tmp_path / "plain.jinja").write_text("{{ messages[0].content }}")
    chat = {"template": str(tmp_path / "plain.jinja"), "date": "2026-11-26"}
    with pytest.raises(UsageError, match="no chat template asks for the time"):
        run_job(configure(**chat))
