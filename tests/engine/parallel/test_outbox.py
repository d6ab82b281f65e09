"""Telling a process something: its order, its length, and that nobody waits for a reader."""

from __future__ import annotations

import time
from multiprocessing.connection import Pipe

import pytest

from sharegen.engine.parallel.outbox import Outbox

LONG = b"x" * (4 << 20)  # more than any socket holds; a large tokenizer's length


def test_nobody_waits_until_a_long_message_is_read() -> None:
    ours, theirs = Pipe()
    outbox = Outbox(ours)
    sent = [LONG, "short", LONG, *range(100)]
    began = time.monotonic()
    for message in sent:
        outbox.send(message)
    assert time.monotonic() - began < 30
    assert [theirs.recv() for _ in sent] == sent
    outbox.send("at once again")
    assert theirs.poll(5) and theirs.recv() == "at once again"


def test_short_messages_that_nobody_reads() -> None:
    """They fill the socket, and are there when somebody comes."""
    ours, theirs = Pipe()
    outbox = Outbox(ours)
    for i in range(1_000):
        outbox.send([i, "." * 1_000])
    assert [theirs.recv()[0] for _ in range(1_000)] == list(range(1_000))


@pytest.mark.parametrize("message", ["short", LONG])
def test_a_process_that_is_gone(message: object) -> None:
    ours, theirs = Pipe()
    outbox = Outbox(ours)
    outbox.send(LONG)
    theirs.close()
    until = time.monotonic() + 5
    with pytest.raises(ConnectionError):
        while time.monotonic() < until:
            outbox.send(message)
            time.sleep(0.01)
