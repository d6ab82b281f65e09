"""What a process is told: its messages in their order, and nobody waits until they are read.

A connection holds some 200 kB. A setting with a tokenizer is longer, and is read when the process
has imported torch; a process that is stopped reads nothing any more.
"""

from __future__ import annotations

import pickle
import select
import sys
import threading
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

_AT_ONCE = 1 << 16 if sys.platform == "linux" else 0
"""Bytes that a socket always takes which can be written to at all: Linux says so of one that is at
least three quarters empty."""


class Outbox:
    """The messages to the process at the other end of a connection."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._waiting: deque[bytes] = deque()  # the first of them is being written
        self._lock = threading.Lock()
        self._fault: OSError | None = None
        self._writable = select.poll()
        self._writable.register(connection.fileno(), select.POLLOUT)

    def send(self, message: object) -> None:
        """Raises ConnectionError where an earlier message found nobody, or this one does."""
        data = pickle.dumps(message)
        with self._lock:
            if self._fault is not None:
                raise ConnectionError(str(self._fault))
            if self._waiting:
                self._waiting.append(data)
                return
            if len(data) <= _AT_ONCE and self._writable.poll(0):
                self._connection.send_bytes(data)
                return
            self._waiting.append(data)
        threading.Thread(target=self._write, daemon=True).start()

    def _write(self) -> None:
        while True:
            try:
                self._connection.send_bytes(self._waiting[0])
            except OSError as error:  # the process is gone, which whoever listens to it sees
                with self._lock:
                    self._fault = error
                    self._waiting.clear()
                return
            with self._lock:
                self._waiting.popleft()
                if not self._waiting:
                    return
