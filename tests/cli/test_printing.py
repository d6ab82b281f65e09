"""What others wrote, at a terminal: no escape is obeyed and no bracket is markup."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.results.journal.record import Record
from tests.cli.conftest import Command, write_jsonl

HOSTILE = "\x1b]0;owned\x07\x1b[2J[/x]\\\u202e"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal under a hostile name, with hostile texts wherever a record has one."""
    path = tmp_path / f"a{HOSTILE.replace('/', '')}.jsonl"
    records = [
        Record(f"p{HOSTILE}", i, "h", HOSTILE, 3, HOSTILE, -1.5, f"9{HOSTILE}", HOSTILE)
        for i in range(3)
    ]
    path.write_bytes(b"".join(record.to_line() for record in records) + b"[7]\n")
    return path


@pytest.mark.parametrize(
    "command",
    [["vote"], ["show", "--problem", f"p{HOSTILE}"], ["report"], ["score"]],
    ids=lambda command: command[0],
)
def test_readers_of_a_hostile_journal(sharegen: Command, journal: Path, command: list[str]) -> None:
    ran = sharegen(command[0], journal, *command[1:])
    assert ran.code == 0, ran.err
    shown = ran.err if command[0] == "vote" else ran.out + ran.err  # its table goes to a program
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    assert "line 4: the line is not a JSON object" in ran.err


@pytest.mark.parametrize(
    "command",
    [
        ["vote", f"no{HOSTILE}"],
        ["show", f"no{HOSTILE}", "--problem", "1"],
        ["score", f"no{HOSTILE}", "--execute"],
        ["report", f"no{HOSTILE}"],
        ["convert", f"no{HOSTILE}", "--format", "bigcode"],
        ["run", f"no{HOSTILE}"],
        [f"no{HOSTILE}"],
    ],
    ids=lambda command: command[0][:8],
)
def test_error_lines(sharegen: Command, command: list[str]) -> None:
    ran = sharegen(*command)
    assert ran.code in (1, 2) and "Traceback" not in ran.err
    assert "\x1b" not in ran.err and "\x07" not in ran.err and ran.err.count("\n") == 1
    assert "\\x1b[2J" in ran.err


def test_a_summary_of_hostile_rows(sharegen: Command, job: list[object], rows: Path) -> None:
    write_jsonl(rows, [{"question": HOSTILE, "answer": "#### 1", "id": HOSTILE}])
    ran = sharegen(*job)
    assert ran.code == 0 and "\x1b" not in ran.out + ran.err
