"""Runs and shards of one job beside each other: a sample is drawn once, whoever draws it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.shard import Shard
from sharegen.errors import JournalError
from sharegen.job import loaded
from sharegen.job.run_job import run_job
from sharegen.results.journal.pool import one_job
from sharegen.workload.configuration import Configuration
from tests.job.parts import configure, records

SHARDS = [Shard(1, 2), Shard(2, 2)]


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    """A job of which the first of two shards is done, and the second has a sample a problem."""
    run_job(configure(folder), tmp_path / "a.jsonl", shard=SHARDS[0])
    run_job(configure(folder, samples=1), tmp_path / "a.jsonl", shard=SHARDS[1])
    return tmp_path / "a.jsonl"


@pytest.mark.turn(4)
def test_a_run_of_all_takes_what_the_shards_have(
    folder: Path,
    shards: Path,
    whole: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have = [records(path) for path in shards.parent.glob("a.shard-*.jsonl")]
    outcome = run_job(configure(folder), shards)
    drawn = records(shards)
    assert outcome.drawn == 33 - sum(sample is not None for part in have for _, sample in part)
    assert outcome.drawn == sum(sample is not None for _, sample in drawn) == 10
    assert drawn | have[0] | have[1] == whole
    assert {(r.problem_id, r.sample) for r in one_job(shards).records()} == whole.keys()
    monkeypatch.setattr("sharegen.job.loaded.load", lambda *_: pytest.fail("a model was loaded"))
    again = run_job(configure(folder), shards)
    assert again.drawn == 0 and len(again.journals) == 3
    assert run_job(configure(folder), shards, shard=SHARDS[1]).drawn == 0


@pytest.mark.turn(2)
def test_shards_that_have_all_are_a_whole_job(
    folder: Path,
    shards: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_job(configure(folder), shards, shard=SHARDS[1])
    monkeypatch.setattr("sharegen.job.loaded.load", lambda *_: pytest.fail("a model was loaded"))
    outcome = run_job(configure(folder), shards)
    assert outcome.drawn == 0 and not shards.exists()
    assert outcome.run.counts["samples"] == 33


@pytest.mark.turn(2)
def test_a_job_goes_on_in_another_number_of_shards(
    folder: Path,
    shards: Path,
    whole: dict[Any, Any],
) -> None:
    for index in (1, 2, 3):
        run_job(configure(folder), shards, shard=Shard(index, 3))
    found = [records(path) for path in shards.parent.glob("a.shard-*.jsonl")]
    samples = [key for part in found for key in part if key[1] is not None]
    assert len(samples) == len(set(samples)) == 33
    assert {key: line for part in found for key, line in part.items()} == whole


def test_an_interrupted_run_of_all_goes_on_in_shards(
    folder: Path,
    tmp_path: Path,
    whole: dict[Any, Any],
) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(folder, samples=2), path)
    drawn = sum(run_job(configure(folder), path, shard=shard).drawn for shard in SHARDS)
    assert drawn == 11
    assert {(r.problem_id, r.sample) for r in one_job(path).records()} == whole.keys()


@pytest.mark.parametrize(
    ("held", "shard", "refused"),
    [
        ("a.shard-2-of-2.jsonl", None, True),
        ("a.shard-2-of-2.jsonl", Shard(1, 3), True),
        ("a.shard-2-of-2.jsonl", Shard(1, 2), False),
        ("a.jsonl", Shard(1, 2), True),
    ],
)
@pytest.mark.turn(4)
def test_what_another_process_draws_is_not_drawn_beside_it(
    folder: Path,
    shards: Path,
    held: str,
    shard: Shard | None,
    refused: bool,
) -> None:
    path = shards.with_name(held)
    before = {other.name for other in shards.parent.iterdir()} | {held}
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not refused:
            assert run_job(configure(folder), shards, shard=shard).drawn == 0
            return
        with pytest.raises(JournalError, match=f"{held}: another process is writing it"):
            run_job(configure(folder), shards, shard=shard)
    assert {other.name for other in shards.parent.iterdir()} == before


@pytest.mark.turn(2)
def test_a_job_that_grows_is_cut_anew_and_draws_nothing_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fourth row a problem of the first shard is the second's; both may run at once."""

    def grown(limit: int) -> Configuration:
        job = configure(folder, samples=1, max_tokens=2)
        return job.model_copy(update={"dataset": job.dataset.model_copy(update={"limit": limit})})

    path = tmp_path / "a.jsonl"
    for shard in SHARDS:
        run_job(grown(3), path, shard=shard)
    load, drawn = loaded.load, []

    def loading(*arguments: Any) -> Any:
        monkeypatch.setattr(loaded, "load", load)
        drawn.append(run_job(grown(4), path, shard=SHARDS[1]).drawn)  # while the first one loads
        return load(*arguments)

    monkeypatch.setattr(loaded, "load", loading)
    drawn.append(run_job(grown(4), path, shard=SHARDS[0]).drawn)
    assert sum(drawn) == 1
    for shard in SHARDS:
        assert run_job(grown(4), path, shard=shard).drawn == 0
    samples = [key for file in tmp_path.glob("a.*.jsonl") for key in records(file)]
    assert len(samples) == len(set(samples)) == 4


@pytest.mark.turn(2)
@pytest.mark.parametrize("shard", [None, Shard(1, 3)])
def test_shards_of_another_job_are_refused(
    folder: Path,
    shards: Path,
    shard: Shard | None,
) -> None:
    said = r"a\.shard-1-of-2\.jsonl: comes from another configuration: sampling\.seed was 0 and is"
    with pytest.raises(JournalError, match=said):
        run_job(configure(folder, seed=5), shards, shard=shard)
    with pytest.raises(JournalError, match=said):
        run_job(configure(folder, seed=5), shards, shard=SHARDS[0])


def test_a_shard_beside_one_of_another_job_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    run_job(configure(folder), path, shard=SHARDS[0])
    said = r"mixed\.shard-1-of-2\.jsonl: comes from another configuration: .*: rename or remove it"
    with pytest.raises(JournalError, match=said):
        run_job(configure(folder, seed=5), path, shard=SHARDS[1])
    assert run_job(configure(folder, seed=5), path, shard=SHARDS[1], overwrite=True).drawn


def test_overwrite_says_what_it_discards(
    folder: Path, shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_job(configure(folder, seed=5, samples=1), shards, shard=SHARDS[1], overwrite=True)
    said = "a.shard-2-of-2.jsonl: 5 samples will be discarded once the model is loaded"
    assert said in caplog.text


@pytest.mark.turn(2)
def test_overwrite_leaves_no_samples_that_would_count(folder: Path, shards: Path) -> None:
    for shard in (None, Shard(2, 3)):
        with pytest.raises(JournalError, match=r"shard-1-of-2\.jsonl: has samples of the same job"):
            run_job(configure(folder), shards, shard=shard, overwrite=True)
    anew = [run_job(configure(folder, seed=5), shards, shard=s, overwrite=True) for s in SHARDS]
    assert sum(outcome.drawn for outcome in anew) == 33
    seeds = [json.loads(p.read_text())["configuration"]["sampling"]["seed"]
             for p in shards.parent.glob(".sharegen/*.run.json")]  # fmt: skip
    assert seeds == [5, 5]


def test_an_edited_row_is_refused_whoever_sampled_it(folder: Path, shards: Path) -> None:
    job = configure(folder)
    rows = Path(str(job.dataset.source)).read_text().replace("12 eggs", "13 eggs")
    edited = shards.with_name("rows.jsonl")
    edited.write_text(rows)
    dataset = job.dataset.model_copy(update={"source": str(edited)})
    with pytest.raises(JournalError, match="its prompt or tests changed since"):
        run_job(job.model_copy(update={"dataset": dataset}), shards)


def test_a_run_holds_its_job_before_its_model_is_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one loads, the other is refused, and leaves no file."""
    path = tmp_path / "a.jsonl"
    load = loaded.load
    refused = []

    def loading(*arguments: Any) -> Any:
        monkeypatch.setattr(loaded, "load", lambda *_: pytest.fail("another model was loaded"))
        for shard in (None, Shard(1, 3)):
            with pytest.raises(JournalError, match="another process is writing it") as caught:
                run_job(configure(folder), path, shard=shard)
            refused.append(str(caught.value))
        monkeypatch.setattr(loaded, "load", load)
        return load(*arguments)

    monkeypatch.setattr(loaded, "load", loading)
    run_job(configure(folder, samples=1), path, shard=SHARDS[0])
    assert len(refused) == 2 and all("a.shard-1-of-2.jsonl" in said for said in refused)
    assert [file.name for file in tmp_path.glob("*.jsonl")] == ["a.shard-1-of-2.jsonl"]


RUN = """
import sys
from pathlib import Path
from sharegen.common.shard import Shard
from sharegen.errors import JournalError
from sharegen.job import loaded
from sharegen.job.machine import load
from sharegen.job.run_job import run_job
from sharegen.results.journal import lock
from tests.job.parts import configure

lock._PATIENCE = 0.1  # the whole job takes 0.3 s where the machine is fast
folder, path, shard = sys.argv[1:]
configuration = configure(Path(folder))
load(configuration)  # what takes long for the first time
print("ready", flush=True)
sys.stdin.readline()
try:
    run_job(configuration, Path(path), shard=Shard.parse(shard) if shard else None)
except JournalError as error:
    print(error)
"""


def start_at_once(folder: Path, path: Path, kinds: tuple[str, str]) -> bool:
    """A run of all and a shard; whether one of them found the other at work.

    It does not where the machine lets one begin when the other has ended.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, str(folder), str(path), shard],
            env=os.environ | {"SHAREGEN_LOCK": kind},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind, shard in zip(kinds, ("", "1/2"), strict=True)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=150)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), said
    return any("another process is writing it" in text for text in said)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("", ""), ("", "file"), ("file", "file")])
def test_a_run_of_all_and_a_shard_that_start_at_once_draw_nothing_twice(
    folder: Path, tmp_path: Path, kinds: tuple[str, str]
) -> None:
    for attempt in range(4):
        place = tmp_path / str(attempt)
        place.mkdir()
        have_met = start_at_once(folder, place / "a.jsonl", kinds)
        found = [records(file) for file in place.glob("*.jsonl")]
        samples = [key for part in found for key in part if key[1] is not None]
        assert len(samples) == len(set(samples))
        if kinds == ("", ""):
            assert len(samples) > 0  # and one of them went on
        if have_met:
            return
    pytest.fail("they never ran beside each other")
