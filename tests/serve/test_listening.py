"""The thread that listens: it can be told to end before it has begun."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sharegen.serve.limits import Limits
from sharegen.serve.listening import Listener, bound


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


def test_it_ends_when_it_was_told_so_before_it_began() -> None:
    """A signal may come between the base URL's print and the start."""
    with closing(bound("127.0.0.1", 0, Limits())) as sock:
        listener = Listener(app, sock, Limits())
        listener.end()
        listener.join(0.0)
        assert listener.is_over
        listener.start()
        listener.join(60)
        assert listener.is_over
