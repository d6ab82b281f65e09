"""What goes between the thread that listens and the one with the engines: requests, their news."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from sharegen.engine.core.request import Completion, Request, TokenLogprobs

Place = tuple[int, int]
"""A sample: the key of its request, and its index."""


@dataclass
class Grown:
    """Tokens that a sample has drawn since the last news of it, with what was asked about them."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def extend(self, other: Grown) -> None:
        self.token_ids += other.token_ids
        self.logprobs += other.logprobs


@dataclass
class News:
    """What has become of a ticket since somebody last looked.

    finished: samples that have ended. grown: of a stream, what the others have drawn. error: why
    nothing more comes, and is_ours whether that is the server's fault.
    """

    finished: list[Completion] = field(default_factory=list)
    grown: dict[Place, Grown] = field(default_factory=dict)
    error: str | None = None
    is_ours: bool = False

    def add(self, other: News) -> None:
        """What has happened after it. So a slow reader makes the news longer, never more."""
        self.finished += other.finished
        for place, grown in other.grown.items():
            self.grown.setdefault(place, Grown()).extend(grown)
        self.error = self.error or other.error
        self.is_ours = self.is_ours or other.is_ours


class Ticket:
    """The requests of one HTTP request. streams: whether tokens are told as they come.

    The thread with the engines owns `left`: samples that have not ended. `put` and `news` are the
    listening thread's.
    """

    def __init__(self, requests: Sequence[Request], streams: bool = False) -> None:
        self.requests = requests
        self.streams = streams
        self.left = sum(len(request.samples) for request in requests)
        self.is_left = False  # whether the client has gone
        self._news = News()
        self._changed = asyncio.Event()

    def leave(self) -> None:
        """The client has gone: whoever waits for news has an empty one."""
        self.is_left = True
        self._changed.set()

    def put(self, news: News) -> None:
        """Something has happened."""
        self._news.add(news)
        self._changed.set()

    async def news(self) -> News:
        """What has happened since the last look; waits for something."""
        await self._changed.wait()
        self._changed.clear()
        found, self._news = self._news, News()
        return found


class Engines(Protocol):
    """Where tickets go. keys: of requests that were not asked yet; ends: whether nobody takes
    more."""

    keys: count[int]
    ends: bool

    def submit(self, ticket: Ticket) -> None:
        """A ticket is sent to an engine."""

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for a ticket any more; its KV is free in the next step."""
