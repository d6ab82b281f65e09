"""Standard output that is full, closed or no longer read, as every command meets it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.tree import Tree

import sharegen as package
from sharegen.cli.streams import guarded
from tests.cli.conftest import Command
from tests.cli.test_votes import journal

COMMANDS = {
    "help": ["vote", "--help"],
    "version": ["version"],
    "recipes": ["recipes"],
    "recipes show": ["recipes", "show", "prompts"],
    "vote": ["vote", "a.jsonl"],
    "vote to stdout": ["vote", "a.jsonl", "-o", "-"],
    "show": ["show", "a.jsonl", "--problem", "x"],
    "score": ["score", "a.jsonl"],
    "report": ["report", "a.jsonl"],
    "plan": ["plan", "self-consistency", "--limit", 2],
}


# It loads a tokenizer, which takes seconds; a closed output it meets at every turn.
SLOWLY_PLAN = [
    pytest.param(name, marks=pytest.mark.slow) if name == "plan" else name for name in COMMANDS
]


@pytest.fixture(params=COMMANDS)
def arguments(request: pytest.FixtureRequest, tmp_path: Path) -> list[object]:
    journal(tmp_path / "a.jsonl", {"x": ["18", "7", None]})
    (tmp_path / ".sharegen" / "a.run.json").unlink()  # what it says is not a configuration
    command: list[object] = COMMANDS[request.param]  # type: ignore[assignment]
    return command


def told(arguments: list[object], folder: Path, redirection: str, **streams: int) -> list[str]:
    """The exit code, and the lines on standard error that are not about a file."""
    program = "from sharegen.cli import main; main()"
    paths = [str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-c", program,
         *map(str, arguments)],
        cwd=folder, stderr=subprocess.PIPE, text=True, timeout=120, **streams,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("a.jsonl: ")]
    if lines and lines[0].startswith("the prompt cannot be shown: "):
        del lines[0]
    return [str(ran.returncode), *lines]


@pytest.mark.parametrize("arguments", SLOWLY_PLAN, indirect=True)
@pytest.mark.turn(5)
def test_a_full_disk_is_one_line(arguments: list[object], tmp_path: Path) -> None:
    code, line = told(arguments, tmp_path, "> /dev/full")
    assert code == "1"
    assert line.startswith("sharegen: error: standard output: cannot be written: No space left")


@pytest.mark.turn(4)
def test_a_closed_output_is_one_line(arguments: list[object], tmp_path: Path) -> None:
    code, line = told(arguments, tmp_path, ">&-")
    assert code == "1" and line.startswith("sharegen: error: standard output is closed")


@pytest.mark.parametrize("arguments", SLOWLY_PLAN, indirect=True)
@pytest.mark.turn(5)
def test_a_reader_that_left_is_no_failure(arguments: list[object], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert told(arguments, tmp_path, "", stdout=writer) == ["0"]
    os.close(writer)


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-"])
@pytest.mark.turn(2)
def test_log_lines_that_nobody_takes_stop_nothing(tmp_path: Path, redirection: str) -> None:
    journal(tmp_path / "a.jsonl", {"x": ["18", "7", None]})
    command = ["vote", "a.jsonl", "-o", "votes.jsonl"]
    assert told(command, tmp_path, redirection) == ["0"]
    assert len((tmp_path / "votes.jsonl").read_text().splitlines()) == 1


def test_half_a_character_is_spelled(sharegen: Command, tmp_path: Path) -> None:
    journal(tmp_path / "a.jsonl", {"x\ud83d": ["18"]}, gold="\ud83d")
    ran = sharegen("vote", "a.jsonl")
    assert ran.code == 0 and "x\\ud83d\t18" in ran.out
    assert sharegen("show", "a.jsonl", "--problem", "x\ud83d").code == 0


def test_without_utf_8_the_screen_is_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PYTHONIOENCODING=ascii: what we draw with is ASCII, the rest is spelled."""
    written = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, raw in written.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    with guarded():
        for stream in (sys.stdout, sys.stderr):
            tree = Tree("2 problems · 4 samples")
            tree.add("… 1 more ✓ é")
            Console(file=stream, width=60).print(tree)
            stream.flush()
        told = {name: raw.getvalue().decode("ascii") for name, raw in written.items()}
    for text in told.values():
        assert text == "2 problems - 4 samples\n`-- ... 1 more + \\xe9\n"
