"""Several processes count in one memory."""

from __future__ import annotations

from sharegen.engine.config import EngineStats
from sharegen.serve.metrics import ServerCounts, as_text


def test_counts_are_those_of_all_processes() -> None:
    memory = bytearray(ServerCounts.size_of(2))
    one, other = ServerCounts(memory, 0), ServerCounts(memory, 1)
    one.change("open", 3)
    other.change("open", 2)
    other.change("left", 1)
    one.answer(200)
    other.answer(200)
    other.answer(599)
    assert one.total("open") == other.total("open") == 5
    assert one.answered == {200: 2, 599: 1}
    one.let_go(1)
    assert (one.total("open"), one.total("left")) == (3, 1)
    assert 'sharegen_http_requests_total{status="200"} 2' in as_text(EngineStats(), 1, other)
