"""A worker's or a rank's end of its connection: what it is told, what it says, that it lives.

What comes is taken by a thread of its own, so whoever tells the process something long is never
kept waiting while it waits for them with something long, and their end is noticed at once. Another
thread gives a sign of life every second, whatever the process computes: without one it is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from sharegen.engine.parallel.messages import Alive

BEAT_SECONDS = 1.0


class Line:
    """The connection of a process that ends with whoever is at its other end."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()  # a long message is written in two parts
        self._step_began: float | None = None
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def get(self) -> Any:
        """The next message; waits for it."""
        self._step_began = None
        return self._inbox.get()

    @property
    def has_mail(self) -> bool:
        return not self._inbox.empty()

    def begin_step(self) -> None:
        """From here to the next step, or to the next message, is what should end soon."""
        self._step_began = time.monotonic()

    def say(self, message: object) -> None:
        """Any thread may. Raises ConnectionError where nobody is left to hear it."""
        with self._lock:
            self._connection.send(message)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._connection.recv())
        except (EOFError, OSError):
            os._exit(0)

    def _beat(self) -> None:
        try:
            while True:
                began = self._step_began
                self.say(Alive(0.0 if began is None else time.monotonic() - began))
                time.sleep(BEAT_SECONDS)
        except OSError:
            pass  # the reader sees it, too
