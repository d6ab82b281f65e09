"""The marks of a table: what tells one of its rows from the others, by letters with a legend.

Figures of different cards, or of different code, must not look like figures of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from benchmarks.measurement import Measurement

FEW_EXPERTS = (
    "Its random weights sent most rows to few of the experts. A trained model's go to all of them."
)


@dataclass
class Marks:
    """Letters in the order in which they are first needed."""

    _letters: dict[str, str] = field(default_factory=dict)

    def letter(self, text: str) -> str:
        return self._letters.setdefault(text, ascii_lowercase[len(self._letters)])

    def of(self, *texts: str) -> str:
        """The letters of some texts, to stand behind a number."""
        letters = ", ".join(sorted(self.letter(text) for text in texts))
        return f" ({letters})" if letters else ""

    def legend(self) -> list[str]:
        return [f"({letter}) {text}" for text, letter in self._letters.items()]


def short_commit(commit: str) -> str:
    """Its first eight digits, and whether the clone had changes."""
    digits, plus, changes = commit.partition("+")
    return digits[:8] + plus + changes


def same_code(row: Measurement, other: Measurement) -> bool:
    """Whether two were measured at one commit, which may be written in seven digits or more."""
    if row.commit is None or other.commit is None:
        return row.commit == other.commit
    one, two = row.commit.partition("+"), other.commit.partition("+")
    digits = min(len(one[0]), len(two[0]))
    return one[0][:digits] == two[0][:digits] and one[1:] == two[1:]


def of_most_code(rows: Sequence[Measurement]) -> list[Measurement]:
    """The rows of the commit that most were measured at; of several such, the newest one's."""
    alike = [[each for each in rows if same_code(each, row)] for row in rows]
    return max(alike, key=lambda found: (len(found), max(each.date for each in found)))


def age(row: Measurement, others: Sequence[Measurement]) -> str:
    """Whether a row's code is older than others', newer, or just another one of their days."""
    dates = [each.date for each in others]
    if row.date < min(dates):
        return "older"
    return "newer" if row.date > max(dates) else "other"


def differences(rows: Sequence[Measurement]) -> list[list[str]]:
    """For each row of a table what is said of it beside the others."""
    return [list(_differences(row, rows)) for row in rows]


def _differences(row: Measurement, rows: Sequence[Measurement]) -> Iterator[str]:
    names = Counter(each.card.name for each in rows)
    if len(names) > 1 and row.card.name != names.most_common(1)[0][0]:
        yield f"On another card: {row.card.name}."
    elif _is_other_card(row, rows):
        yield f"On another {row.card.name} than most rows."
    most = of_most_code(rows)
    if not same_code(row, most[0]):
        how = age(row, most).capitalize()
        yield f"{how} code than most rows', measured on {row.date:%Y-%m-%d}."
    if row.published:
        yield f"As published in {row.published}."
    if row.busy:
        yield "The machine did other work at the same time."
    if row.few_experts:
        yield FEW_EXPERTS


def _is_other_card(row: Measurement, rows: Sequence[Measurement]) -> bool:
    """Whether it is known that the row ran on another card of the same name than most."""
    known = Counter(each.card.uuids[0] for each in rows if each.card.uuids)
    return bool(row.card.uuids) and known.most_common(1)[0][0] not in row.card.uuids
