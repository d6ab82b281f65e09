"""What a server's main process and its HTTP processes say to each other: plain data, pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharegen.engine.core.request import Request
from sharegen.engine.parallel.messages import CompletionMessage
from sharegen.serve.limits import Limits
from sharegen.serve.ticket import Grown, News, Place
from sharegen.workload.configuration import Configuration

# -- to an HTTP process -----------------------------------------------------------------------


@dataclass(frozen=True)
class Prepare:
    """What an HTTP process is made from.

    names: of the model; key: what clients bring; is_local: whether it listens on this machine
    alone. place: the process's own number, from 1, and processes: how many count together.
    """

    configuration: Configuration
    names: tuple[str, ...]
    limits: Limits
    key: str | None
    is_local: bool
    place: int
    processes: int


@dataclass(frozen=True)
class Open:
    """The engines stand: answer. context: the most tokens; fingerprint: of the model."""

    context: int
    fingerprint: str


@dataclass(frozen=True)
class Changed:
    """The model is another one from now on."""

    fingerprint: str


@dataclass(frozen=True)
class End:
    """Take no more connections; those that are open have their grace, or none."""

    at_once: bool


class Told(NamedTuple):
    """News of the ticket whose first request has this key. A tuple, for it is soon read."""

    key: int
    finished: list[CompletionMessage]
    grown: dict[Place, Grown]
    error: str | None
    is_ours: bool

    @classmethod
    def of(cls, key: int, news: News) -> Told:
        finished = list(map(CompletionMessage.of, news.finished))
        return cls(key, finished, news.grown, news.error, news.is_ours)

    def news(self, requests: Sequence[Request]) -> News:
        by_key = {request.key: request for request in requests}
        finished = [each.completion(by_key[each.key]) for each in self.finished]
        return News(finished, self.grown, self.error, self.is_ours)


# -- from an HTTP process ---------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """Clients are answered."""


class Asked(NamedTuple):
    """A ticket for the engines, known by the key of its first request."""

    requests: Sequence[Request]
    streams: bool


class Left(NamedTuple):
    """Nobody waits for the ticket any more whose first request has this key."""

    key: int
