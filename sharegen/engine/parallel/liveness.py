"""How long a worker or a rank is waited for that gives no sign of life, or whose step never ends.

What counts is the time in which somebody listened. So nobody is given up because the process that
listens was stopped itself, or had other things to do, or because the whole machine slept.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sharegen.engine.parallel.messages import Alive
from sharegen.errors import UsageError

VARIABLE = "SHAREGEN_WORKER_TIMEOUT"
LISTEN_SECONDS = 1.0
"""How long one wait for messages may take, so that silence is noticed."""

_SILENCE = 120.0  # seconds; a process that lives gives a sign each second
_START = 5  # times as long: imports from a slow disk come before the first sign
_STEP = 15  # times as long: a step may compile kernels


@dataclass(frozen=True)
class Bounds:
    """Seconds without a sign of life, to the first sign, and of one step."""

    silence: float
    start: float
    step: float

    @classmethod
    def of_environment(cls) -> Bounds:
        """By SHAREGEN_WORKER_TIMEOUT, in seconds. Raises UsageError where it is no such number."""
        text = os.environ.get(VARIABLE, "")
        try:
            silence = float(text) if text else _SILENCE
        except ValueError:
            silence = math.nan
        if not silence > 0:
            raise UsageError(f"{VARIABLE} is {text!r:.40}: give seconds, more than 0, or inf")
        return cls(silence, _START * silence, _STEP * silence)


K = TypeVar("K")


@dataclass
class _Life:
    """silent: seconds since the last sign; step: how long a step has lasted, by that."""

    is_begun: bool = False
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
        """Somebody has listened to these for so long; those who are given up, and why."""
        passed = min(seconds, LISTEN_SECONDS)  # more is time in which this process was stopped
        gone: list[tuple[K, str]] = []
        for who in to:
            life = self._lives.setdefault(who, _Life())
            life.silent += passed
            why = self._why(life)
            if why is not None:
                gone.append((who, why))
        return gone

    def _why(self, life: _Life) -> str | None:
        bounds = self._bounds
        if not life.is_begun:
            return f"it has not begun in {bounds.start:g} s" if life.silent > bounds.start else None
        if life.silent > bounds.silence:
            return f"it gave no sign of life for {bounds.silence:g} s: it is stopped, or hangs"
        if life.step > bounds.step:
            return f"one of its steps has not ended in {bounds.step:g} s: it hangs"
        return None
