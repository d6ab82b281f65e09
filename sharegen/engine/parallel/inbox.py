"""What a process is told, taken as it comes by a thread of its own.

So whoever tells it something long is never kept waiting while this process waits for them with
something long, and their end is noticed at once.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any


def inbox_of(connection: Connection[Any, Any]) -> SimpleQueue[Any]:
    """All that comes; the process ends with the other side, whatever it is doing."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_read, args=[connection, inbox], daemon=True).start()
    return inbox


def _read(connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
