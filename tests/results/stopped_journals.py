"""Journals of jobs that a rule stopped, written by hand."""

from __future__ import annotations

from pathlib import Path

from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, run_file_path

# By problem: decided after 4 of 6; after 4 of 6 with one more in flight; after all; not yet.
ANSWERS = {
    "a": {0: "7", 1: "7", 2: "7", 3: "7"},
    "b": {0: "8", 1: "8", 2: "8", 3: "8", 5: "1"},
    "c": {0: "1", 1: "2", 2: "3", 3: None, 4: "2", 5: "1"},
    "d": {0: "5", 2: "5", 3: "5"},
}


def journal(path: Path, rule: str | None = "decided", samples: int = 6, seed: int = 0) -> Path:
    records = [
        Record(problem, index, "h", f"#### {answer}", 10, answer=answer, gold="7")
        for problem, answers in ANSWERS.items()
        for index, answer in reversed(answers.items())
    ]
    path.write_bytes(b"".join(record.to_line() for record in records))
    sampling = {"samples": samples, "stop_when": rule}
    run = RunFile({"sampling": {"seed": seed}}, extent={"sampling": sampling})
    run.write(run_file_path(path))
    return path
