"""`bench decode --workers`: engines that make their own weights, beside one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.cli import main
from tests.engine.parallel.forked import Processes, forked
from tests.engine.tiny_models import tiny_config


@pytest.fixture
def shape(tmp_path: Path) -> str:
    tiny_config("llama").save_pretrained(tmp_path)
    return str(tmp_path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "decode", "--device", "cpu", "--dtype", "float32", *arguments])
    assert isinstance(exit.value.code, int)
    return exit.value.code


@pytest.mark.slow
@pytest.mark.turn(10)
def test_two_beside_one(
    shape: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Processes] = []

    def place(**_: object) -> Processes:
        started.append(forked())
        return started[-1]

    monkeypatch.setattr("sharegen.engine.parallel.opening.Processes", place)
    assert run("--shape", shape, "--workload", "40,20,4,6,5", "--workers", "2") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(started) == 1 and result["workers"] == 2
    assert result["one_tokens"] == result["tokens"] == 4 * 6 * 5
    assert result["one_prompt_tokens_computed"] == 40 + 4 * 20
    assert result["prompt_tokens_duplicated"] == 40
    assert result["speedup"] == pytest.approx(result["one_seconds"] / result["seconds"])


@pytest.mark.parametrize(
    "more", [["--levels", "1"], ["--read-by-each"], ["--ceiling"], ["--largest"]]
)
def test_what_is_not_compared(
    shape: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--shape", shape, "--workers", "2", *more) == 2
    assert "leave out --levels" in capsys.readouterr().err


def test_more_workers_than_cores(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--shape", shape, "--workers", "9999") == 2
    assert "too many" in capsys.readouterr().err
