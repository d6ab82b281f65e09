"""Commands that pages show, parsed as the command line does it; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from sharegen.cli import commands_named

EXAMPLE = re.compile(r"^ *(?:Example: )?((?:\.venv/bin/)?sharegen \S.*)$", re.MULTILINE)

_ENDS = ("&&", "||", "|", ">", "<", ";", "&")


def blocks(page: str, language: str) -> list[str]:
    """A page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def in_blocks(page: str) -> Iterator[str]:
    """Every command of ours in a page's blocks of shell."""
    for block in blocks(page, "(?:sh|bash)"):
        yield from EXAMPLE.findall(re.sub(r" \\\n +", " ", block))


def in_text(page: str) -> Iterator[str]:
    """Every command of ours in a page's lines of text."""
    for text in re.findall(r"(?<!`)`(sharegen [^`]+)`", page):
        yield " ".join(text.split())


@cache
def commands() -> list[tuple[list[str], Any]]:
    """The words and the parser of every command that is no group of commands."""

    def below(words: list[str], command: Any) -> list[tuple[list[str], Any]]:
        children = getattr(command, "commands", {})
        found = [
            found for name, child in children.items() for found in below([*words, name], child)
        ]
        if not children or command.invoke_without_command:
            found.append((words, command))
        return found

    return below([], typer.main.get_command(commands_named()))


def split(line: str) -> list[str]:
    """The words of the first command of a line of shell."""
    words = shlex.split(line, comments=True)
    end = next((i for i, word in enumerate(words) if word in _ENDS), len(words))
    return words[:end]


def parse(line: str) -> None:
    """Parse a command's arguments as running it would; raises what wrong usage raises."""
    path, command, arguments = _found(line)
    if arguments[-1:] == ["--help"]:
        return
    command.make_context(" ".join(path), arguments)


def unknown_flags(line: str) -> set[str]:
    """The flags of a command that it does not have, whatever stands in place of values."""
    _, command, arguments = _found(line)
    known = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    typed = {word.partition("=")[0] for word in arguments if word.startswith("--")}
    return typed - known - {"--help", "--debug", "--"}


def _found(line: str) -> tuple[list[str], Any, list[str]]:
    """The words of the command in a line, its parser, and the words behind them."""
    words = split(line)[1:]
    path, command = max(
        ((p, c) for p, c in commands() if words[: len(p)] == p),
        key=lambda found: len(found[0]),
        default=([], None),
    )
    assert command is not None, f"{line}: no such command"
    return path, command, words[len(path) :]
