"""How long a worker or a rank is waited for that gives no sign of life, or whose step never ends.

What counts is the time in which somebody listened. So nobody is given up because the process that
listens was stopped itself, or had other things to do, or because the whole machine slept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sharegen.engine.parallel.bounds import Bounds
from sharegen.engine.parallel.messages import Alive

LISTEN_SECONDS = 1.0
"""How long one wait for messages may take, so that silence is noticed."""

K = TypeVar("K")


@dataclass
class _Life:
    """The life of one process. age: seconds in all; silent: since the last sign; step: how long a
    step lasts, by that.
    """

    is_begun: bool = False
    age: float = 0.0
    silent: float = 0.0
    step: float = 0.0


class Liveness(Generic[K]):
    """Some processes, and for how long each has given no sign of life."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds.of_environment()
        self._lives: dict[K, _Life] = {}

    def heard(self, who: K, message: object) -> None:
        life = self._lives.setdefault(who, _Life())
        life.is_begun, life.silent = True, 0.0
        life.step = message.step_seconds if isinstance(message, Alive) else 0.0

    def leave(self, who: K) -> None:
        self._lives.pop(who, None)

    def listened(self, seconds: float, to: Iterable[K]) -> list[tuple[K, str]]:
        """Note that somebody has listened for so long; return those who are given up, and why."""
        passed = min(seconds, LISTEN_SECONDS)  # more is time in which this process was stopped
        gone: list[tuple[K, str]] = []
        for who in to:
            life = self._lives.setdefault(who, _Life())
            life.age += passed
            life.silent += passed
            why = self._why(life)
            if why is not None:
                gone.append((who, why))
        return gone

    def newly_late(self, seconds: float, who: Collection[K]) -> list[K]:
        """Return those that have just become older than what a start takes, at most.

        seconds: for which somebody has listened last.
        """
        start, passed = self._bounds.start, min(seconds, LISTEN_SECONDS)
        ages = {each: self._lives[each].age for each in who if each in self._lives}
        return [each for each, age in ages.items() if age - passed <= start < age]

    def _why(self, life: _Life) -> str | None:
        bounds = self._bounds
        if not life.is_begun:
            return f"it has not begun in {bounds.start:g} s" if life.silent > bounds.start else None
        if life.silent > bounds.silence:
            return f"it gave no sign of life for {bounds.silence:g} s: it is stopped, or hangs"
        if life.step > bounds.step:
            return f"one of its steps has not ended in {bounds.step:g} s: it hangs"
        return None
