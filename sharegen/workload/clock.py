"""The time that a job's chat templates see: that of the job's first run, in all its runs.

A template that writes the date (`strftime_now`: Llama 3.2, Granite, SmolLM3, gpt-oss) would ask
other prompts on another day, and the samples of one job would answer different ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

_DIRECTIVE = re.compile(r"%[-_0^#]*[0-9]*[EO]?(.)", re.DOTALL)
_OF_DAYS = frozenset("aAbBCdDeFgGhjmnuUVwWxyYt%")
"""Directives of `strftime` that say the same all day long."""


class Clock:
    """A moment, in the time zone that the machine is in, and what templates asked of it.

    formats: what they called `strftime_now` with.
    """

    def __init__(self, moment: datetime) -> None:
        self.moment = moment
        self.formats: set[str] = set()

    @classmethod
    def now(cls) -> Clock:
        return cls(datetime.now().replace(microsecond=0))

    @classmethod
    def of(cls, text: str) -> Clock:
        """The clock of `2026-11-26` or `2026-11-26T09:30:00`. Raises ValueError."""
        return cls(datetime.fromisoformat(text))

    def note(self, formats: Iterable[str]) -> None:
        """A template has asked for these."""
        self.formats |= set(formats)

    @property
    def is_read(self) -> bool:
        """Whether a template asked for anything."""
        return bool(self.formats)

    @property
    def tells_time(self) -> bool:
        """Whether a template asked for more than the date."""
        directives = (d for text in self.formats for d in _DIRECTIVE.findall(text))
        return any(directive not in _OF_DAYS for directive in directives)

    @property
    def fingerprint(self) -> dict[str, str]:
        """What the journal keeps: the date, and the time where a template writes it."""
        if not self.is_read:
            return {}
        moment = self.moment if self.tells_time else self.moment.date()
        return {"clock": moment.isoformat()}

    def in_words(self) -> str | None:
        """What a user should know of a template that writes the time; None of one that does not."""
        if not self.is_read:
            return None
        what = "time of day" if self.tells_time else "date"
        return (
            f"the chat template writes the {what}: {self.fingerprint['clock']} in all prompts, as "
            "in the job's first run, whenever it goes on (--set chat.date=... for another)"
        )


def like(text: str, other: str) -> str:
    """A time as precise as another one: a journal whose template writes the date has no more."""
    return text[: len(other)]
