"""Equal bodies are read once, but for those that ask otherwise at another time."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sharegen.engine.core.request import SamplingParams
from sharegen.results.export.openai import Endpoint
from sharegen.serve import read_bodies
from sharegen.serve.asked import Delivery, ParsedRequest
from sharegen.serve.faults import Refusal
from sharegen.serve.read_bodies import ReadBodies

SIZE = read_bodies._EACH + 4 + read_bodies._TOKEN
"""Of a body of four bytes and one token, as it is counted."""

Test = Callable[["Bodies"], Awaitable[None]]


class Bodies(ReadBodies):
    """begun: those that were read. lasts: whether they ask the same at any time."""

    def __init__(self) -> None:
        super().__init__(self._begins)
        self.begun: list[tuple[Endpoint, bytes]] = []
        self.futures: list[asyncio.Future[ParsedRequest]] = []
        self.lasts = True
        self.at_once = True

    def _begins(self, endpoint: Endpoint, body: bytes) -> asyncio.Future[ParsedRequest]:
        self.begun.append((endpoint, body))
        future: asyncio.Future[ParsedRequest] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        if self.at_once:
            future.set_result(self.asked(endpoint))
        return future

    def asked(self, endpoint: Endpoint = "text") -> ParsedRequest:
        return ParsedRequest(
            endpoint, [[1]], ["a"], SamplingParams(), Delivery(), None, False, lasts=self.lasts
        )


def in_a_loop(test: Test) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test(Bodies()))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@in_a_loop
async def test_a_body_is_known_by_its_bytes_and_its_endpoint(bodies: Bodies) -> None:
    first = await bodies.read("text", b"{}")
    assert await bodies.read("text", b"{}") is first
    await bodies.read("chat", b"{}")
    await bodies.read("text", b"{ }")
    assert bodies.begun == [("text", b"{}"), ("chat", b"{}"), ("text", b"{ }")]


@in_a_loop
async def test_those_that_come_meanwhile_wait_for_the_first(bodies: Bodies) -> None:
    bodies.at_once = False
    waiting = [asyncio.ensure_future(bodies.read("text", b"1")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # its client has left
    await asyncio.sleep(0)
    bodies.futures[0].set_result(bodies.asked())
    assert await waiting[1] is await waiting[2] is bodies.futures[0].result()
    assert len(bodies.begun) == 1 and not bodies._reading


@in_a_loop
async def test_what_is_wrong_is_told_to_all_and_read_again(bodies: Bodies) -> None:
    bodies.at_once = False
    waiting = [asyncio.ensure_future(bodies.read("text", b"1")) for _ in range(2)]
    await asyncio.sleep(0)
    bodies.futures[0].set_exception(Refusal(400, "no"))
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [Refusal, Refusal]
    bodies.at_once = True
    await bodies.read("text", b"1")
    assert len(bodies.begun) == 2


def test_the_least_recently_asked_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_bodies, "_MOST", 2 * SIZE)

    async def ask(bodies: Bodies) -> None:
        for body in (b"1234", b"5678", b"1234", b"90ab", b"1234"):
            await bodies.read("text", body)
            await asyncio.sleep(0)
        assert len(bodies.begun) == 3 and bodies._held == 2 * SIZE
        assert list(bodies._known) == [("text", b"90ab"), ("text", b"1234")]

    asyncio.run(ask(Bodies()))


def test_short_bodies_take_no_more_memory_than_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of a body is many times its bytes: those alone let a server's memory grow."""
    most = 1 << 20
    monkeypatch.setattr(read_bodies, "_MOST", most)

    async def ask(bodies: Bodies) -> None:
        await bodies.read("text", b"")
        tracemalloc.start()
        for number in range(2 * most // SIZE):
            await bodies.read("text", b'{"prompt": "a", "seed": %d}' % number)
            await asyncio.sleep(0)
            bodies.begun.clear()
            bodies.futures.clear()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most / 4 < held < most
        assert len(bodies._known) < 1.1 * most / SIZE

    asyncio.run(ask(Bodies()))


def test_tokens_count_as_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(bodies: Bodies) -> None:
        monkeypatch.setattr(bodies, "asked", lambda endpoint: with_tokens)
        with_tokens = replace(Bodies.asked(bodies), prompts=[[1] * 500, [2] * 500])
        await bodies.read("text", b"1234")
        await asyncio.sleep(0)
        assert bodies._held == SIZE + 999 * read_bodies._TOKEN

    asyncio.run(ask(Bodies()))


def test_what_does_not_last_and_what_is_large_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_bodies, "_LARGEST", 4)

    async def ask(bodies: Bodies) -> None:
        bodies.lasts = False
        await bodies.read("text", b"1")
        bodies.lasts = True
        await bodies.read("text", b"12345")
        await asyncio.sleep(0)
        assert not bodies._known and bodies._held == 0

    asyncio.run(ask(Bodies()))
