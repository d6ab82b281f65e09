"""Why an answer was read as it was: the rule, and the place in the text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sharegen.common.printable import visible
from sharegen.results.answers.equality import is_right
from sharegen.results.answers.normal import normalise
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reader import AnswerReader
from sharegen.results.answers.reading import Reading
from sharegen.results.journal.record import Record

_BEFORE, _AFTER = 60, 40  # characters of an excerpt around what was read
_LONGEST = 200  # characters of what was read


def explain(records: Iterable[Record], reader: AnswerReader | None) -> Iterator[str]:
    """Lines in Rich's markup: what was read from each sample, by which rule, and where.

    reader: what reads the answers; None where the lines of the journal alone say them.
    """
    for record in records:
        if not record.is_drawn:
            name = "not sampled" if record.sample is None else f"sample {record.sample}"
            yield _heading(name, record.error or "no reason on record")
            continue
        found = None if reader is None else reader.read(record.completion, record.finish_reason)
        name = f"sample {record.sample}"
        if found is not None:
            yield _heading(name, found.answer, _mark(record), _counted(found), found.rule)
            yield excerpt(record.completion, found)
        elif reader is None and record.answer is not None:
            yield _heading(name, record.answer, _mark(record), "as its line has it")
        else:
            yield _heading(name, "no answer", _why_not(record, reader))
            yield f"    [dim]{_shown(record.completion[-_BEFORE - _AFTER :])}[/]"


def excerpt(text: str, found: Reading) -> str:
    """The read part of a text between double brackets, with what stands around it."""
    start, end = max(0, found.start - _BEFORE), found.end + _AFTER
    read = text[found.start : found.end]
    if len(read) > _LONGEST:
        read = f"{read[: _LONGEST // 2]} ... {read[-_LONGEST // 2 :]}"
    before = ("... " if start else "") + text[start : found.start]
    after = text[found.end : end] + (" ..." if end < len(text) else "")
    return f"    {_shown(before)}[bold reverse]{_shown(f'[[{read}]]')}[/]{_shown(after)}"


def _shown(text: str) -> str:
    """Text in a line of its own."""
    return visible(text.replace("\n", "\\n").replace("\t", "\\t"))


def _heading(name: str, *said: str | None) -> str:
    parts = [f"[bold]{visible(name)}[/]", *(visible(each) for each in said if each)]
    return " [dim]·[/] ".join(parts)


def _mark(record: Record) -> str | None:
    if record.gold is None or record.answer is None:
        return None
    return "right" if is_right(record.answer, record.gold) else "wrong"


def _counted(found: Reading) -> str | None:
    """The spelling under which an answer is counted, where it is another."""
    counted = normalise(found.answer)
    return None if counted == found.answer else f"counted as {counted!r}"


def _why_not(record: Record, reader: AnswerReader | None) -> str:
    if reader is None:
        return "the recipe asks for none"
    if not Passage.of(record.completion).raw.strip():
        return "nothing follows the model's thinking" if record.completion.strip() else "no text"
    if record.finish_reason == "length" and reader.read(record.completion) is not None:
        return "cut off before an answer was complete"
    return "no rule finds one"
