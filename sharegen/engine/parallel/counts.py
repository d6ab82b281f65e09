"""What several engines count, as one engine would."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

from sharegen.engine.config import EngineStats

_OURS = ("prompt_tokens_asked", "idle")  # known to who deals: a worker is asked what others lost
_LARGEST = ("slots",)  # of one engine: steps are counted by engine, too
_OF_NOW = ("running", "waiting", "blocks_total", "blocks_used", "states_total")
_ZERO = {name: value for name, value in asdict(EngineStats()).items() if name not in _OURS}


class Counts:
    """Keeps `total` the sum of what each engine last said; those that are gone still count."""

    def __init__(self, total: EngineStats) -> None:
        self._total = total
        self._last: dict[Hashable, dict[str, Any]] = {}

    def update(self, worker: Hashable, stats: EngineStats) -> None:
        """A worker's engine counts this by now."""
        last = self._last.setdefault(worker, dict(_ZERO))
        now = vars(stats)
        for name, before in last.items():
            value = now[name]
            if value == before:
                continue  # most of them, most of the time
            if isinstance(value, dict):
                self._add_each(name, value, before)
                value = dict(value)
            elif name in _LARGEST:
                setattr(self._total, name, max(getattr(self._total, name), value))
            elif isinstance(value, int | float):
                self._add(name, value - before)
            else:
                setattr(self._total, name, getattr(self._total, name) or value)
            last[name] = value

    def leave(self, worker: Hashable) -> None:
        """A worker is gone: nothing of it runs, and its memory is free."""
        last = self._last.pop(worker, _ZERO)
        for name in _OF_NOW:
            self._add(name, -last[name])

    def _add(self, name: str, more: float) -> None:
        setattr(self._total, name, getattr(self._total, name) + more)

    def _add_each(self, name: str, now: dict[str, int], before: dict[str, int]) -> None:
        total = getattr(self._total, name)
        for key, count in now.items():
            total[key] = total.get(key, 0) + count - before.get(key, 0)
