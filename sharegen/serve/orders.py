"""What all engines are told to do at once, by whoever trains the model: hold, go on, change."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Order:
    """Something to be done in the thread with the engines. do: does it, and returns what comes of
    it; is_time: whether it may be done now. Until it is done nothing new is admitted."""

    do: Callable[[], Any]
    is_time: Callable[[], bool] = lambda: True
    done: Future[Any] = field(default_factory=Future)

    def obey(self) -> None:
        """Do it, unless nobody waits for it any more; its errors are whoever gave it's."""
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            found = self.do()
        except Exception as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(found)


class Orders:
    """Orders that have come, which are obeyed one after another. Any thread may put one."""

    def __init__(self) -> None:
        self._come: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._first: Order | None = None

    def put(self, order: Order) -> None:
        """One more."""
        self._come.put(order)

    @property
    def wait(self) -> bool:
        """Whether one waits for its time."""
        return self._first is not None

    def obey(self) -> None:
        """Do those whose time it is."""
        while self._take():
            assert self._first is not None
            if not (self._first.done.cancelled() or self._first.is_time()):
                return
            order, self._first = self._first, None
            order.obey()

    def _take(self) -> bool:
        """Have the first one that is left, if there is any."""
        if self._first is None:
            with suppress(queue.Empty):
                self._first = self._come.get_nowait()
        return self._first is not None

    def fail(self, error: Exception) -> None:
        """None of them is obeyed any more."""
        while self._take():
            assert self._first is not None
            order, self._first = self._first, None
            if order.done.set_running_or_notify_cancel():
                order.done.set_exception(error)
