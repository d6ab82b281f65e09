"""Gold answers that a copy of the process reads are known as if they were read here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharegen.job import gold_reading

_PROGRAM = """
import os, sys
from sharegen.job import gold_reading
from sharegen.job.reordering import load_unread
from sharegen.workload.configuration import resolve

gold_reading._MANY = int(sys.argv[2])
if sys.argv[3].endswith("fails"):
    gold_reading._tell = lambda *_: 1
forks = []
fork = os.fork
os.fork = lambda: forks.append(fork()) or forks[-1]
configuration = resolve("self-consistency", sys.argv[1], {"model": "x", "few_shot": {"k": 0}})
workload = load_unread(configuration)
if sys.argv[3].startswith("all"):
    workload = gold_reading.with_gold_read(workload, configuration)
    golds = [problem.gold for problem in workload.problems]
    print(len(forks), golds, list(workload.golds))
    sys.exit()
with gold_reading.gold_read_beside(workload, configuration) as settled:
    workload = settled(workload)
print(len(forks), [problem.gold is not None for problem in workload.problems])
workload.name_odd_rows()
"""


def _run(rows: Path, many: int, how: str = "") -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(rows), str(many), how],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_a_copy_finds_the_same_and_what_fails_is_read_here(tmp_path: Path) -> None:
    answers = ["It is so.\n#### 18", "nobody knows", "#### 3", "7"]
    rows = [{"question": f"How many, {i}?", "answer": each} for i, each in enumerate(answers)]
    filler = [{"question": f"Which, {i}?", "answer": "#### 1"} for i in range(8)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *filler]))
    here, said = _run(file, 100)
    beside, said_then = _run(file, 2)
    failed, said_at_last = _run(file, 2, "fails")
    known = [True, False, True, True] + [True] * 8
    assert here == f"0 {known}"
    assert beside == f"1 {known}"
    assert failed == f"2 {known}"  # the second would have read half of them
    assert said == said_then == said_at_last
    assert "11 of 12 problems" in said


@pytest.mark.slow
def test_half_of_them_are_read_by_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    answers = ["#### 18", "nobody knows", "It is 5.\n#### 3", "7", "#### 1,200"]
    rows = [{"question": f"How many, {i}?", "answer": each} for i, each in enumerate(answers)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = "['18', None, '3', '7', '1200'] ['0', '1', '2', '3', '4']"
    assert _run(file, 100, "all")[0] == f"0 {read}"
    assert _run(file, 2, "all")[0] == f"1 {read}"
    assert _run(file, 2, "all fails")[0] == f"1 {read}"


def test_a_process_with_torch_is_not_copied() -> None:
    import torch  # noqa: F401 - as in whoever uses LLM

    assert not gold_reading._may_be_copied()
