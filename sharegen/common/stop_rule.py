"""`--stop-when`: by which rule a problem's samples are enough before all of them are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

Kind = Literal["decided", "confident", "window", "right"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_FORMS = "decided, confident[=0.95], window[=5] or right=K"
_LEAST_WINDOW = 2  # one sample is unanimous whatever it says


@dataclass(frozen=True)
class StopRule:
    """A rule, for all problems of a job.

    decided: the majority over all samples can no longer change.
    confident: the leader is the commoner one of the first two with a probability of `value`.
    window: all of `value` samples in a row say the same.
    right: `value` samples are right.
    """

    kind: Kind
    value: float | int | None = None

    @classmethod
    def parse(cls, text: str) -> StopRule:
        """Read `confident=0.9` and so on. Raises ValueError for what is no rule."""
        name, equals, value = text.partition("=")
        if name not in KINDS or (equals and not value) or (name == "decided" and equals):
            raise ValueError(f"not a rule: {_FORMS}")
        kind = cast(Kind, name)
        if kind == "decided":
            return cls(kind)
        if kind == "confident":
            return cls(kind, _share(value or "0.95"))
        if kind == "right" and not value:
            raise ValueError("how many right samples are enough is missing: right=K")
        return cls(kind, _whole(kind, value or "5", _LEAST_WINDOW if kind == "window" else 1))

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind}={self.value}"

    @property
    def votes(self) -> bool:
        """Whether it reads how the samples vote, and not which are right."""
        return self.kind != "right"

    @property
    def is_exact(self) -> bool:
        """Whether the vote over what it leaves is the vote over all."""
        return self.kind == "decided"

    @property
    def named(self) -> str:
        """The rule, and that its vote is approximate where it is."""
        return str(self) if self.is_exact else f"{self}, approximate"


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 < value < 1:
        raise ValueError(f"confident={text:.20}: it must be above 0.5 and below 1")
    return value


def _whole(kind: str, text: str, least: int) -> int:
    good = text.isascii() and text.isdigit()
    if not good or int(text[:10]) < least:
        raise ValueError(f"{kind}={text:.20}: it must be a whole number of at least {least}")
    return int(text[:10])
