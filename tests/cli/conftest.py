"""Whole commands in this process, a tiny model and a tiny dataset to run them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sharegen.cli import main
from tests.tiny import save_tiny_model


@dataclass(frozen=True)
class Ran:
    """A finished command: its exit code and what it wrote."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]

ROWS = [
    {
        "question": f"Tom has {n} apples and buys {n + 1} more. How many?",
        "answer": f"#### {2 * n + 1}",
    }
    for n in range(3, 12)
]


@pytest.fixture
def sharegen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `sharegen ARGS...` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(int(exit.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A dataset in GSM8K's schema."""
    return write_jsonl(tmp_path / "rows.jsonl", ROWS[3:])


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "examples.jsonl", ROWS[:3])


@pytest.fixture
def job(model: Path, rows: Path, examples: Path) -> list[object]:
    """Arguments of a small self-consistency job."""
    return ["run", "self-consistency", "--model", model, "--dataset", rows, "--few-shot-file",
            examples, "--few-shot", 2, "-n", 3, "--max-tokens", 8, "--kv-cache-memory", "4MiB",
            "-o", "out.jsonl"]  # fmt: skip


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
