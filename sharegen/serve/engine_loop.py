"""The engines' side of a server: what has come goes to them, and what came of it is told.

Engines run in processes of their own, so that a step waits for no client and no client for a step.
This runs in the main thread, which they are heard in.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, Literal, get_args

from sharegen.engine.parallel.dispatcher import Dispatcher, Happened
from sharegen.errors import SharegenError
from sharegen.serve.faults import Refusal
from sharegen.serve.orders import Order, Orders
from sharegen.serve.ticket import Grown, News, Ticket

_COLLECTIONS = (50_000, 10, 10)
"""New objects before garbage is looked for. Clients that vanish leave some in circles, which is to
stay small. Others leave none, and to look among 1,000 that wait at every 10,000 objects took a
third of this process's time for them."""

_SWITCH = 0.0005
"""Seconds that a thread keeps Python to itself: news wait little for bodies and answers."""

PauseMode = Literal["keep", "wait", "abort"]
"""What becomes of what runs at a pause, in vLLM's words."""

PAUSE_MODES: tuple[PauseMode, ...] = get_args(PauseMode)

Tell = Callable[[list[tuple[Ticket, News]]], None]
"""Hands news to the thread that listens."""


class EngineLoop:
    """Engines, and the tickets that they work on. tell: called with what has happened; seed: of
    draws that bring none."""

    def __init__(self, engines: Dispatcher, seed: int) -> None:
        self.engines = engines
        self.keys = count()
        self.tell: Tell = lambda news: None
        self.ends = False
        self._drops = False
        self._over: str | None = None  # why it has ended, from when it has
        self._seed = seed
        self._come: queue.SimpleQueue[tuple[Ticket, bool]] = queue.SimpleQueue()
        self._is_told = False  # that something has come since this thread last looked
        self._tickets: dict[int, Ticket] = {}  # by the keys of their requests
        self._orders = Orders()
        self._at_door: list[Ticket] = []  # while nothing is admitted
        self.is_paused = False

    def submit(self, ticket: Ticket) -> None:
        """From any thread: a ticket is sent to an engine."""
        self._put(ticket, True)
        if self._over is not None:  # nobody takes it any more
            self._fail_all(self._over)

    def cancel(self, ticket: Ticket) -> None:
        """From any thread: nobody waits for a ticket any more; its KV is free in the next step."""
        self._put(ticket, False)

    def _put(self, ticket: Ticket, comes: bool) -> None:
        self._come.put((ticket, comes))
        if not self._is_told:
            self._is_told = True
            self.engines.wake()

    # -- what whoever trains the model orders -----------------------------------------------------

    def pause(self, mode: PauseMode) -> Future[None]:
        """From any thread: admit nothing new. What runs is held, waited for, or ended."""
        if mode == "wait":
            self.resume()  # what an earlier pause holds
            return self._order(Order(self._close_door, self._is_idle))
        return self._order(Order(self._hold if mode == "keep" else self._end_running))

    def resume(self) -> Future[None]:
        """From any thread: go on."""
        return self._order(Order(self._go_on))

    def change_weights(self, folder: str) -> Future[str]:
        """From any thread: let what runs finish, and then all engines change their weights.

        Nothing is admitted meanwhile. The result is the model's new fingerprint; errors are those
        of `Dispatcher.change_weights`, and Refusal where what runs is held.
        """
        may = Order(partial(self._change, folder), lambda: self.is_paused or self._is_idle())
        return self._order(may)

    def _order(self, order: Order) -> Future[Any]:
        self._orders.put(order)
        self.engines.wake()
        if self._over is not None:
            self._orders.fail(Refusal(503, self._over))
        return order.done

    def _is_idle(self) -> bool:
        return not self.engines.has_work

    def _hold(self) -> None:
        self.is_paused = True
        self.engines.hold(True)

    def _close_door(self) -> None:
        self.is_paused = True

    def _end_running(self) -> None:
        self.is_paused = True
        news: dict[Ticket, News] = {}
        for key in list(self._tickets):
            self._fail(key, "the server was paused, and what ran has ended: ask again", True, news)
        self.tell(list(news.items()))

    def _go_on(self) -> None:
        self.is_paused = False
        self.engines.hold(False)

    def _change(self, folder: str) -> str:
        if self.engines.has_work:
            raise Refusal(
                409,
                "what runs is held by /pause, and began with the weights as they are: /resume, or "
                "/pause?mode=abort, first",
                code="requests_held",
            )
        return self.engines.change_weights(folder)

    # -- how it ends ------------------------------------------------------------------------------

    def end(self) -> None:
        """From any thread: end when nothing is left."""
        self.ends = True
        self.engines.wake()

    def drop(self) -> None:
        """From any thread: end now, whatever is left."""
        self._drops = True
        self.end()

    def run(self) -> None:
        """Work until it is told to end. Whatever ends it is told to all."""
        self.engines.begin(self._seed)
        why = "the server has ended"
        try:
            with for_serving():
                while not self._drops and (
                    not self.ends
                    or self.engines.has_work
                    or self._at_door
                    or not self._come.empty()
                ):
                    self._take_in()
                    self._orders.obey()
                    self._tell(self.engines.step())
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
            self.engines.end()

    def _take_in(self) -> None:
        """Send on what has come, and let go of what nobody waits for."""
        self._is_told = False
        found = list(self._waiting())
        gone = {id(ticket) for ticket, comes in found if not comes}
        come = [*self._at_door, *(ticket for ticket, comes in found if comes)]
        new = [ticket for ticket in come if id(ticket) not in gone]
        for ticket, comes in found:
            if not comes:
                self._cancel(ticket)
        is_closed = self.is_paused or self._orders.wait
        self._at_door = new if is_closed else []
        if is_closed or not new:
            return
        for ticket in new:
            self._tickets.update((request.key, ticket) for request in ticket.requests)
        streams = {request.key for each in new if each.streams for request in each.requests}
        self.engines.add([request for ticket in new for request in ticket.requests], streams)

    def _waiting(self) -> Iterator[tuple[Ticket, bool]]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._come.get_nowait()

    def _cancel(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            if self._tickets.pop(request.key, None) is not None:
                self.engines.cancel(request.key)

    def _tell(self, happened: Happened) -> None:
        """What has happened, to those who wait for it."""
        news: dict[Ticket, News] = {}
        for each in happened.finished:
            ticket = self._tickets.get(each.request.key)
            if ticket is not None:
                news.setdefault(ticket, News()).finished.append(each)
                ticket.left -= 1
                if ticket.left == 0:
                    self._forget(ticket)
        for key, sample, token_ids, logprobs in happened.grown:
            ticket = self._tickets.get(key)
            if ticket is not None:
                grown = news.setdefault(ticket, News()).grown.setdefault((key, sample), Grown())
                grown.extend(Grown(token_ids, logprobs))
        for key, error in happened.refused.items():
            self._fail(key, str(error), False, news)
        for key, why in happened.lost.items():
            self._fail(key, why, True, news)
        if news:
            self.tell(list(news.items()))

    def _fail(self, key: int, why: str, is_ours: bool, news: dict[Ticket, News]) -> None:
        """A request ends without an answer, and with it all that its ticket asks."""
        ticket = self._tickets.get(key)
        if ticket is not None:
            self._cancel(ticket)
            news[ticket] = News(error=why, is_ours=is_ours)

    def _forget(self, ticket: Ticket) -> None:
        for request in ticket.requests:
            self._tickets.pop(request.key, None)

    def _fail_all(self, why: str) -> None:
        """Nothing more comes of what has not finished."""
        left = set(self._tickets.values())
        self._tickets.clear()
        left |= {ticket for ticket, comes in self._waiting() if comes}
        left |= set(self._at_door)
        self._at_door = []
        self._orders.fail(Refusal(503, why))
        self.tell([(ticket, News(error=why, is_ours=True)) for ticket in left])


@contextlib.contextmanager
def for_serving() -> Iterator[None]:
    """Open a block with Python's settings for threads beside one that listens to clients.

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
