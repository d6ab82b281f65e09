"""The values of flags, in the shape of a recipe."""

from __future__ import annotations

from typing import Any

from sharegen.errors import UsageError

_SHOWN = 80  # characters of a --set that is wrong


def given(values: dict[str, Any]) -> dict[str, Any]:
    """The flags without Nones, and without sections that are then empty."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        kept = given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            out[key] = kept
    return out


def assigned(text: str) -> dict[str, Any]:
    """Return `a.b=1` as {"a": {"b": 1}}; the value is YAML."""
    from yaml import MarkedYAMLError

    from sharegen.workload import plain_yaml

    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"--set {text:.{_SHOWN}}: give a key of the recipe and a value: sampling.min_p=0.05"
        )
    if len(parts) > plain_yaml.MAX_DEPTH:
        raise UsageError(f"--set {text:.{_SHOWN}}: no recipe has that many sections")
    try:
        assigned: Any = plain_yaml.load(value)
    except MarkedYAMLError as error:
        raise UsageError(
            f"--set {text:.{_SHOWN}}: the value is not YAML: {error.problem}"
        ) from None
    for part in reversed(parts):
        assigned = {part: assigned}
    return assigned


def unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def workers(text: str | None) -> int | str | None:
    """What --workers says. Raises UsageError for what is neither a number nor auto."""
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--workers {text}: it must be a number of workers or auto")
    return int(text[:9])
