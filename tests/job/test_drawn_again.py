"""`--check-determinism`: finished samples drawn again in another batch, and compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sharegen.errors import ModelError, UsageError
from sharegen.job.run_job import run_job
from sharegen.results.journal.run_file import RunFile, run_file_path
from tests.job.parts import configure


def machine(folder: Path, samples: int = 3, **options: object):  # type: ignore[no-untyped-def]
    given = configure(folder, samples=samples)
    return given.model_copy(
        update={"machine": given.machine.model_copy(update={"deterministic": True, **options})}
    )


@pytest.mark.turn(2)
def test_samples_come_out_as_they_did_also_of_a_journal_that_is_complete(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    outcome = run_job(machine(folder), path, check_determinism=20)
    assert outcome.run.stats["drawn_again"] == {"samples": 20, "same": 20, "first": None}
    whole = path.read_bytes()
    again = run_job(machine(folder, max_sequences=2), path, check_determinism=10_000)
    assert again.drawn == 0 and path.read_bytes() == whole
    assert again.run.stats["drawn_again"] == {"samples": 33, "same": 33, "first": None}
    # What was drawn to compare is no part of what the job drew.
    assert again.run.stats["completions"] == outcome.run.stats["completions"] == 33


def test_a_sample_that_comes_out_otherwise_is_named(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(machine(folder), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    other = next(line for line in lines if line["sample"] == 2)
    other["cumulative_logprob"] += 2**-20
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ModelError, match=r"1 of 33 samples.*problem .*, sample 2\)"):
        run_job(machine(folder), path, check_determinism=33)
    recorded = RunFile.read(run_file_path(path))
    assert recorded is not None and recorded.stats["drawn_again"]["same"] == 32
    assert path.read_text().count("\n") == len(lines)


def test_where_no_promise_was_made_the_difference_is_only_counted(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    plain = configure(folder, samples=1)
    run_job(plain, path)
    path.write_text(path.read_text().replace('"num_tokens": 10', '"num_tokens": 9', 1))
    outcome = run_job(plain, path, check_determinism=33)
    assert outcome.run.stats["drawn_again"]["same"] == 10


def test_a_journal_goes_on_in_its_own_mode_alone(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(folder, samples=1), path)
    with pytest.raises(Exception, match="deterministic was not set and is now true"):
        run_job(machine(folder, samples=2), path)


def test_a_journal_goes_on_with_its_own_blocks_alone(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(machine(folder, samples=1), path)
    with pytest.raises(Exception, match="block_size was not set and is now 32"):
        run_job(machine(folder, samples=2, block_size=32), path)


def test_sixteen_bits_on_a_cpu_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"deterministic: a CPU rounds .* bfloat16"):
        run_job(machine(folder, dtype="bfloat16"), tmp_path / "a.jsonl")


def test_a_resume_with_other_versions_says_so_and_goes_on(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl"
    run = run_job(machine(folder, samples=1), path).run
    replace(run, versions=run.versions | {"torch": "1.0", "card": "Another"}).write(
        run_file_path(path)
    )
    outcome = run_job(machine(folder, samples=2), path)
    assert outcome.drawn == 11
    said = [record.message for record in caplog.records if "was drawn with" in record.message]
    assert len(said) == 1 and "torch 1.0, now" in said[0] and "other bits" in said[0]
    # On a CPU no card was on record, and none is compared with it.
    assert "Another" not in said[0]
