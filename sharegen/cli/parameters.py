"""How options are declared: kinds of values, and a dataclass of options as a command's own."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer

_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Read a number of bytes from `500000000`, `8GiB`, `8G` or `1.5 GB`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 8GiB or 500MiB")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def parse_path(text: str) -> Path:
    """A path; an empty text, such as an unset variable, is refused."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def parse_journal(text: str) -> Path:
    """The path of a file that is written and continued."""
    if text == "-":
        raise typer.BadParameter("a journal is a file that runs continue: give its path")
    return parse_path(text)


def option(
    panel: str,
    names: str,
    help: str,
    metavar: str | None = None,
    default: str | None = None,
    **more: Any,
) -> Any:
    """An option in a panel of the help.

    names: with commas between; default: what holds where it is not given, in words.
    """
    return typer.Option(
        *names.split(", "),
        help=help,
        rich_help_panel=panel,
        metavar=metavar,
        show_default=default or False,
        **more,
    )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter that is an options dataclass by one parameter for each field."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    kind: Any
    [(name, kind)] = ((name, hint) for name, hint in hints.items() if is_dataclass(hint))
    declared = get_type_hints(kind, include_extras=True)
    own = [p.replace(annotation=hints[n], kind=p.KEYWORD_ONLY)
           for n, p in signature.parameters.items() if n != name]  # fmt: skip
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=declared[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(kind)
    ]

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        options = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values, **{name: options})

    wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    return wrapped
