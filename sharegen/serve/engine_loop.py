"""The engine's side of a server: it takes in what has come, steps, and tells what came of it.

It runs in the main thread, as every engine does: signals, CUDA and other ranks are at home there.
Requests that have come while a step ran are admitted together before the next one, and where
nothing runs the first of them waits a moment for those behind it.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from sharegen.engine.core.request import Completion, Request
from sharegen.engine.engine import Engine
from sharegen.errors import SharegenError
from sharegen.serve.ticket import Grown, News, Ticket

_TOGETHER = 0.003
"""Seconds that the first request waits, where nothing runs, for those that come with it."""

_COLLECTIONS = (10_000, 10, 10)
"""New objects before garbage is looked for: what requests leave behind in circles stays small."""

_SWITCH = 0.0005
"""Seconds that a thread keeps Python to itself: a step waits little for bodies and answers."""

_LOOK = 0.2  # seconds between looks whether it is over, where nothing comes

Tell = Callable[[list[tuple[Ticket, News]]], None]
"""Hands news to the thread that listens."""


class EngineLoop:
    """One engine, and the tickets that it works on. tell: called once a step; seed: of draws that
    bring none."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.keys = count()
        self.tell: Tell = lambda news: None
        self.ends = False
        self._drops = False
        self._over: str | None = None  # why it has ended, from when it has
        self._seed = seed
        self._come: queue.SimpleQueue[tuple[Ticket, bool]] = queue.SimpleQueue()
        self._tickets: dict[int, Ticket] = {}  # by the keys of their requests
        self._streams: dict[int, Ticket] = {}  # those of them whose tokens are told as they come

    def submit(self, ticket: Ticket) -> None:
        """From any thread: a ticket waits for the next step."""
        self._come.put((ticket, True))
        if self._over is not None:  # nobody steps any more
            self._fail_all(self._over)

    def cancel(self, ticket: Ticket) -> None:
        """From any thread: nobody waits for a ticket any more; its KV is free in the next step."""
        self._come.put((ticket, False))

    def drop(self) -> None:
        """From any thread: end with the step that runs, whatever is left."""
        self.ends = self._drops = True

    def run(self) -> None:
        """Work until `ends` is set and nothing is left. Whatever ends it is told to all."""
        self.engine.begin(self._seed, arriving=True)
        why = "the server has ended"
        try:
            with _for_serving():
                while not self._drops and (
                    not self.ends or self.engine.has_work or not self._come.empty()
                ):
                    self._take_in()
                    if self.engine.has_work:
                        self._tell(self.engine.step())
        except BaseException as error:
            why = (
                f"the engine has ended: {error}"
                if isinstance(error, SharegenError)
                else (f"the engine has ended: {type(error).__name__}")
            )
            raise
        finally:
            self.ends, self._over = True, why
            self._fail_all(why)
            self.engine.end()

    def _take_in(self) -> None:
        """Admit what has come, and let go of what nobody waits for."""
        found = list(self._waiting(wait=not self.engine.has_work))
        gone = {id(ticket) for ticket, comes in found if not comes}
        new = [ticket for ticket, comes in found if comes and id(ticket) not in gone]
        for ticket, comes in found:
            if not comes:
                self._cancel(ticket)
        requests = [request for ticket in new for request in ticket.requests]
        errors = self.engine.errors(requests)
        wrong = {request.key: str(error) for request, error in zip(requests, errors, strict=True)
                 if error is not None}  # fmt: skip
        good: list[Request] = []
        news = []
        for ticket in new:
            why = next((wrong[r.key] for r in ticket.requests if r.key in wrong), None)
            if why is not None:
                news.append((ticket, News(error=why)))
                continue
            good += ticket.requests
            for request in ticket.requests:
                self._tickets[request.key] = ticket
                if ticket.streams:
                    self._streams[request.key] = ticket
        if news:
            self.tell(news)
        if good:
            self.engine.add(good)

    def _waiting(self, wait: bool) -> Iterable[tuple[Ticket, bool]]:
        """All that has come; where nothing has and nothing runs, after a while."""
        until = 0.0
        try:
            if wait:
                yield self._come.get(timeout=_LOOK)
                until = time.monotonic() + _TOGETHER
            while True:
                left = until - time.monotonic()
                yield self._come.get(timeout=left) if left > 0 else self._come.get_nowait()
        except queue.Empty:
            return

    def _cancel(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            if request.key in self._tickets:
                self.engine.cancel(request.key)
        self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            self._tickets.pop(request.key, None)
            self._streams.pop(request.key, None)

    def _tell(self, finished: list[Completion]) -> None:
        """What a step has brought, to those who wait for it."""
        news: dict[Ticket, News] = {}
        for each in finished:
            ticket = self._tickets.get(each.request.key)
            if ticket is not None:
                news.setdefault(ticket, News()).finished.append(each)
                ticket.left -= 1
        for ticket in news:
            if ticket.left == 0:
                self._forget(ticket)
        for key, ticket in self._streams.items():
            self._note_growth(key, ticket, news)
        if news:
            self.tell(list(news.items()))

    def _note_growth(self, key: int, ticket: Ticket, news: dict[Ticket, News]) -> None:
        for each in self.engine.so_far(key):
            place = key, each.sample
            told = ticket.told.get(place, 0)
            if len(each.token_ids) > told:
                logprobs = [] if each.logprobs is None else each.logprobs[told:]
                grown = news.setdefault(ticket, News()).grown
                grown[place] = Grown(each.token_ids[told:], logprobs)
                ticket.told[place] = len(each.token_ids)

    def _fail_all(self, why: str) -> None:
        """Nothing more comes of what has not finished."""
        left = set(self._tickets.values())
        self._tickets.clear()
        self._streams.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                ticket, comes = self._come.get_nowait()
                if comes:
                    left.add(ticket)
        self.tell([(ticket, News(error=why, fatal=True)) for ticket in left])


@contextlib.contextmanager
def _for_serving() -> Iterator[None]:
    """Python's settings for a thread that steps beside one that listens.

    What exists now is left out of collections: one over all of torch takes as long as ten steps.
    """
    before = gc.get_threshold(), sys.getswitchinterval()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    sys.setswitchinterval(_SWITCH)
    try:
        yield
    finally:
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
        gc.unfreeze()
