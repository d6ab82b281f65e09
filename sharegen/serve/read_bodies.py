"""What bodies ask: equal ones, as groups of samples send them, are read once.

Those that come while the first is being read wait for it; those that come later find it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from sharegen.results.export.openai import Endpoint
from sharegen.serve.asked import ParsedRequest

_MOST = 12 << 20
"""Bytes, by `_size`, that are remembered; the least recently asked are forgotten first.

That is 1,900 bodies of 100 tokens, or 270 of 1,000.
"""

_EACH = 2 << 10
"""Bytes of what is read of a body, beside its tokens: measured with short ones."""

_TOKEN = 40
"""Bytes of a token id in a list."""

_LARGEST = 64 << 10
"""Bytes of a body that is remembered: longer ones would leave room for few."""

_Name = tuple[Endpoint, bytes]


class ReadBodies:
    """What was read of bodies, for the thread that listens alone.

    begin: begins to read a body, in another thread.
    """

    def __init__(self, begin: Callable[[Endpoint, bytes], asyncio.Future[ParsedRequest]]) -> None:
        self._begin = begin
        self._known: OrderedDict[_Name, ParsedRequest] = OrderedDict()
        self._held = 0
        self._reading: dict[_Name, asyncio.Future[ParsedRequest]] = {}

    async def read(self, endpoint: Endpoint, body: bytes) -> ParsedRequest:
        """What a body asks. Raises what reading it raises."""
        name = (endpoint, body)
        found = self._known.get(name)
        if found is not None:
            self._known.move_to_end(name)
            return found
        reading = self._reading.get(name)
        if reading is None:
            reading = self._reading[name] = self._begin(endpoint, body)
            reading.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(reading)  # for others, too, where this client leaves

    def _done(self, name: _Name, reading: asyncio.Future[ParsedRequest]) -> None:
        del self._reading[name]
        if not reading.cancelled() and reading.exception() is None:
            self._remember(name, reading.result())

    def _remember(self, name: _Name, asked: ParsedRequest) -> None:
        """It was read, and if it asks the same at any time need not be again."""
        _, body = name
        if len(body) > _LARGEST or not asked.lasts:
            return
        self._known[name] = asked
        self._held += _size(body, asked)
        while self._held > _MOST:
            (_, oldest), forgotten = self._known.popitem(last=False)
            self._held -= _size(oldest, forgotten)


def _size(body: bytes, asked: ParsedRequest) -> int:
    """About how many bytes it takes to remember a body. It is many times a short body's own."""
    return _EACH + len(body) + _TOKEN * sum(map(len, asked.prompts))
