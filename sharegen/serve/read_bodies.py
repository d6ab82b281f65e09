"""What bodies asked that came before: the same one, as groups of samples send it, is read once."""

from __future__ import annotations

from collections import OrderedDict

from sharegen.results.export.openai import Endpoint
from sharegen.serve.asked import Asked

_MOST = 4 << 20
"""Bytes of bodies that are remembered; the least recently asked are forgotten first."""

_LARGEST = 64 << 10
"""Bytes of a body that is remembered: longer ones would leave room for few."""


class ReadBodies:
    """What was read of bodies, for the thread that listens alone."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Endpoint, bytes], Asked] = OrderedDict()
        self._held = 0

    def get(self, endpoint: Endpoint, body: bytes) -> Asked | None:
        """What it asked when it came before; None where that is not remembered."""
        found = self._known.get((endpoint, body))
        if found is not None:
            self._known.move_to_end((endpoint, body))
        return found

    def remember(self, body: bytes, asked: Asked) -> None:
        """It was read, and asks the same whenever it comes again."""
        name = (asked.endpoint, body)
        if len(body) > _LARGEST or not asked.lasts or name in self._known:
            return
        self._known[name] = asked
        self._held += len(body)
        while self._held > _MOST:
            (_, oldest), _ = self._known.popitem(last=False)
            self._held -= len(oldest)
