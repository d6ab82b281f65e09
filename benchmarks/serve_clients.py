"""Clients of a server under load: processes that ask together, and what their asking costs.

The `openai` package is what harnesses use; a process of it asks some 200 requests a second, however
fast the server is. The raw client writes the same requests to a socket and costs next to nothing:
beside it one sees what bounds a load.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from typing import Any, Literal

from openai import AsyncOpenAI

Kind = Literal["openai", "raw"]
Prompt = str | list[int]
_MADE_SECONDS = 120.0  # for the clients of all processes to be made
_made: Barrier  # of a client's process: where all of them wait for each other


@dataclass(frozen=True)
class Asking:
    """How requests are asked of the server at a port.

    at_once: that are under way, at most. until_eos: whether an end token ends a sample, too.
    """

    port: int
    model: str
    max_tokens: int
    at_once: int
    kind: Kind = "openai"
    until_eos: bool = False

    def client(self) -> AsyncOpenAI:
        url = f"http://127.0.0.1:{self.port}/v1"
        return AsyncOpenAI(base_url=url, api_key="none", timeout=3600)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """One sample, of so many tokens whatever the model draws, or at most."""
        return {
            "model": self.model, "prompt": prompt, "max_tokens": self.max_tokens,
            "ignore_eos": not self.until_eos,
        }  # fmt: skip


@dataclass(frozen=True)
class LoadResult:
    """What one process has asked. begin, end: seconds of a clock that all processes have.

    begin: when the clients of all processes were made; none of them had asked before.
    """

    tokens: int
    cpu_seconds: float
    begin: float
    end: float


def ask_all(asking: Asking, prompts: Sequence[Prompt], processes: int) -> list[LoadResult]:
    """Ask all, each process its part of them and of what is under way."""
    each = -(-len(prompts) // processes)
    parts = [prompts[at : at + each] for at in range(0, len(prompts), each)]
    room = max(1, -(-asking.at_once // len(parts)))
    fork = get_context("fork")
    made = fork.Barrier(len(parts))
    with ProcessPoolExecutor(len(parts), fork, _join, (made,)) as clients:
        return list(clients.map(partial(_ask, asking, room), parts))


def _join(made: Barrier) -> None:
    """Said to each process. Each takes one part, so all of them come."""
    global _made
    _made = made


def _ask(asking: Asking, room: int, prompts: Sequence[Prompt]) -> LoadResult:
    if asking.kind == "openai":
        asyncio.run(_import_client(asking))
    _made.wait(_MADE_SECONDS)
    begin, cpu = time.monotonic(), time.process_time()
    asked = _by_openai if asking.kind == "openai" else _by_hand
    tokens = asyncio.run(asked(asking, room, prompts))
    return LoadResult(tokens, time.process_time() - cpu, begin, time.monotonic())


async def _import_client(asking: Asking) -> None:
    """What the package imports when it is asked first: a harness that is under way has it."""
    async with asking.client() as client:
        await client.models.list()
        _ = client.completions


async def _by_openai(asking: Asking, most: int, prompts: Sequence[Prompt]) -> int:
    room = asyncio.Semaphore(most)

    async def ask(client: AsyncOpenAI, prompt: Prompt) -> int:
        async with room:
            return await ask_one(client, asking, prompt)

    async with asking.client() as client:
        return sum(await asyncio.gather(*(ask(client, prompt) for prompt in prompts)))


async def ask_one(client: AsyncOpenAI, asking: Asking, prompt: Prompt) -> int:
    """The tokens of an answer."""
    answer = await client.completions.create(
        model=asking.model, prompt=prompt, max_tokens=asking.max_tokens,
        extra_body={"ignore_eos": not asking.until_eos},
    )  # fmt: skip
    assert answer.usage is not None
    return answer.usage.completion_tokens


async def _by_hand(asking: Asking, most: int, prompts: Sequence[Prompt]) -> int:
    """Over connections that stay open, each of which asks one request after the other."""
    left = iter([_written(asking, prompt) for prompt in prompts])

    async def ask() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", asking.port)
        tokens = 0
        for request in left:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head[:16], head
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = json.loads(await reader.readexactly(length))
            tokens += body["usage"]["completion_tokens"]
        writer.close()
        return tokens

    return sum(await asyncio.gather(*(ask() for _ in range(min(most, len(prompts))))))


def _written(asking: Asking, prompt: Prompt) -> bytes:
    body = json.dumps(asking.body(prompt)).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
