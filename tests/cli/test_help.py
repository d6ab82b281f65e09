"""Help at 80 columns, exit codes, and what is said of a wrong command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from sharegen.cli import commands_named
from sharegen.cli.completion import (
    complete_dataset,
    complete_from,
    complete_program_dataset,
    complete_recipe,
)
from tests.cli.conftest import Command


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its path."""

    def below(path: list[str], command: Any) -> Iterator[tuple[str, Any]]:
        yield " ".join(path), command
        for name, child in getattr(command, "commands", {}).items():
            yield from below([*path, name], child)

    yield from below([], typer.main.get_command(commands_named()))


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS)
def test_no_line_of_any_help_breaks_at_80_columns(
    path: str, sharegen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = sharegen(*path.split(), "-h")
    assert ran.code == 0 and ran.out.startswith("Usage: ") and not ran.err
    assert max(map(len, ran.out.splitlines())) <= 80, ran.out
    assert "<" not in ran.out.replace("<recipe>-<hash>", "").replace("<=", "")
    assert "the recipe's, or" not in ran.out


def test_options_are_in_their_panels_with_what_holds_without_them(sharegen: Command) -> None:
    said = sharegen("run", "--help").out
    panels = ["Arguments:", "Data:", "Sampling:", "Machine:", "Output:", "Options:"]
    assert [line for line in said.splitlines() if line in panels] == panels
    text = " ".join(said.split())
    assert "-n, --samples N Samples of each problem. [default: 1]" in text
    assert "together. [default: 1024 on a GPU, 256 on a CPU]" in text


@pytest.mark.parametrize(
    ("typed", "samples", "stop"),
    [
        ("run self-consistency", "20", r'"\n\n"'),
        ("plan self-consistency --temperature 2", "20", r'"\n\n"'),
        ("run -n 3 self-consistency --dataset gsm8k", "20", r'"\n\n", "\nQuestion:"'),
        ("code-sample", "100", "none"),
        ("code-sample mbpp", "100", r'"\n[DONE]", "[DONE]"'),
        ("code-sample rows.jsonl", "100", "none"),
        ("run ./mine.yaml", "7", "none"),
        ("run ./broken.yaml", "1", "none"),
        ("run self-consistancy", "1", "none"),
        ("run", "1", "none"),
    ],
)
def test_defaults_are_those_of_the_recipe_that_is_typed(
    sharegen: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    samples: str,
    stop: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("prompt: x\nsampling: {samples: 7}\n", encoding="utf-8")
    Path("broken.yaml").write_text("prompt: x\nsampling: {sample: 7}\n", encoding="utf-8")
    ran = sharegen(*typed.split(), "--help")
    text = " ".join(ran.out.split())
    assert ran.code == 0 and not ran.err
    assert f"Samples of each problem. [default: {samples}]" in text
    assert f"(repeatable; \\n is a newline). [default: {stop}]" in text


def test_exit_codes_are_in_the_help(sharegen: Command) -> None:
    said = sharegen("--help").out
    for line in ("0    done; ", "1    failed: ", "2    wrong usage", "130  interrupted: "):
        assert f"  {line}" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["recipes", "list"], 0, ""),
        (["run", "self-consistency", "--model", "./none"], 1, "no folder "),
        (["vote", "none.jsonl"], 1, "none.jsonl"),
        (["run", "self-consistency", "--split"], 2, "requires an argument"),
        (["run", "self-consistency", "-n", "x"], 2, "'-n': it must be a whole number (see '"),
        (["run", "self-consistency", "-n", "0"], 2, "--samples is 0: it must be at least 1"),
        (["score", "a.jsonl", "--timeout", "0"], 2, "'--timeout': it must be at least 0.1 (see"),
        (["run"], 2, "Missing argument 'RECIPE'"),
        (["bench"], 2, "sharegen bench needs a command: decode, attention, "),
        (["nothing"], 2, "No such command 'nothing'"),
    ],
)
def test_exit_codes(sharegen: Command, arguments: list[str], code: int, said: str) -> None:
    ran = sharegen(*arguments)
    assert ran.code == code and said in ran.err
    assert ran.err.count("\n") == (code > 0)
    assert "Input should" not in ran.err and "Value error" not in ran.err


def test_an_interrupted_command_ends_with_130(
    sharegen: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sharegen.workload.recipe.load_recipe", interrupted)
    ran = sharegen("recipes", "list")
    assert (ran.code, ran.err) == (130, "sharegen: interrupted\n")


def test_a_shell_is_offered_the_recipes() -> None:
    names = [name for name, _ in complete_recipe("")]
    assert {"self-consistency", "code-sample", "prompts", "long-document"} <= set(names)
    [(name, description)] = complete_recipe("self")
    assert name == "self-consistency" and description


def test_a_shell_is_offered_datasets_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gsm8k_test.jsonl", "mine.yaml", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / "data").mkdir()
    typed = SimpleNamespace(params={"recipe": "self-consistency"})
    words = [word for word, _ in complete_dataset(typed, "")]  # type: ignore[arg-type]
    assert words == ["tinymath", "gsm8k", "data/", "gsm8k_test.jsonl", "mine.yaml"]
    assert [word for word, _ in complete_dataset(typed, "gsm")] == ["gsm8k", "gsm8k_test.jsonl"]  # type: ignore[arg-type]
    nothing = SimpleNamespace(params={})
    assert "needles" in [word for word, _ in complete_dataset(nothing, "")]  # type: ignore[arg-type]
    assert [word for word, _ in complete_program_dataset("h")] == ["humaneval"]
    assert [word for word, _ in complete_recipe("m")] == ["mine.yaml"]
    assert complete_from("float32", "float16", "fp8")("fl") == ["float32", "float16"]


def test_flags_of_few_values_complete_them() -> None:
    command = typer.main.get_command(commands_named()).commands["run"]  # type: ignore[attr-defined]
    context = command.make_context("run", ["self-consistency"])
    offered = {
        name: [item.value for item in param.shell_complete(context, "")]
        for param in command.params
        for name in param.opts
    }
    assert "bfloat16" in offered["--dtype"] and "gsm8k" in offered["--dataset"]
    assert offered["--quantization"] == ["fp8", "fp8-blocks", "mxfp4", "dequantize"]
    assert "cuda" in offered["--device"]
