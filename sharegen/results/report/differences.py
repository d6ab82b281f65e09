"""What differs between the runs of a report: the settings by which they were asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sharegen.results.report.measure import settings
from sharegen.results.report.outcomes import Run

_BESIDE = ("versions.", "environment.", "fingerprints.files")
"""When, where and with what: a page has these, and they seldom explain a result."""

_MOST = 10  # settings that are named
_BETWEEN = " | "
_NONE = "-"


def differences(runs: Sequence[Run], width: int) -> Iterator[str]:
    """A heading and a line for each setting, of so many columns; nothing of one run alone.

    Nothing, too, where a run says nothing of its settings.
    """
    if len(runs) < 2 or not all(run.file.settings for run in runs):
        return
    found = [
        (name, values)
        for name, values in settings(runs)
        if len(set(values)) > 1 and not name.startswith(_BESIDE)
    ]
    names = [name for name, _ in found if not _is_hash(name)]
    found = [
        (name, values)
        for name, values in found
        if not _is_hash(name) or not any(each.startswith(_subject(name)) for each in names)
    ]
    if not found:
        yield "Their settings are the same."
        return
    yield f"What differs ({_BETWEEN.join(run.name for run in runs):.{width - 20}}):"
    for name, values in found[:_MOST]:
        room = (width - len(name) - 4 - len(_BETWEEN) * (len(runs) - 1)) // len(runs)
        cells = (" ".join((value or _NONE).split()) for value in values)
        yield f"  {name}: " + _BETWEEN.join(_short(cell, max(8, room)) for cell in cells)
    if len(found) > _MOST:
        yield f"  and {len(found) - _MOST} more (--html has them all)"


def _is_hash(name: str) -> bool:
    """Whether it is of content that another setting names: it then says nothing more."""
    return name.startswith("fingerprints.") or name == "answer.hash"


def _subject(name: str) -> str:
    """The section that a hash is of: of the tokenizer's the model's, for its folder has it."""
    subject = name.removeprefix("fingerprints.").removesuffix(".hash")
    return "model" if subject == "tokenizer" else subject


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
