"""How long clients of a server wait: for first tokens, for further ones, and by rate of arrival."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from openai import AsyncOpenAI

from benchmarks.arrivals import poisson
from benchmarks.measurement import Arrivals, Latency, Points
from benchmarks.serve_clients import Asking, Prompt, ask_one

_EACH = 4  # requests of a client, of which the first is not counted


async def latencies(asking: Asking, prompts: Sequence[Prompt], clients: int) -> Latency:
    """Milliseconds to the first token, and for each further one, of clients side by side.

    Each asks one stream after the other.
    """
    firsts: list[float] = []
    each: list[float] = []

    async def ask(client: AsyncOpenAI, number: int) -> None:
        for turn in range(_EACH):
            prompt = prompts[(number * _EACH + turn) % len(prompts)]
            start, times = time.perf_counter(), []
            stream = await client.completions.create(
                model=asking.model, prompt=prompt, max_tokens=asking.max_tokens, stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            async for _ in stream:
                times.append(time.perf_counter())
            if turn and len(times) > 1:
                firsts.append(1e3 * (times[0] - start))
                each.append(1e3 * (times[-1] - times[0]) / (asking.max_tokens - 1))

    async with asking.client() as client:
        await asyncio.gather(*(ask(client, number) for number in range(clients)))
    return Latency(clients=clients, first_token=_points(firsts), token=_points(each))


async def arriving(
    asking: Asking, prompts: Sequence[Prompt], rate: float, shared: bool
) -> Arrivals:
    """Normalised latency, seconds from arrival to end by the tokens, of requests at random times.

    shared: what is said of the prompts. Source: ChunkAttention (2402.15220), figure 5: Poisson
    arrivals, `rate` a second on average.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.1
    found: list[float] = []

    async def ask(client: AsyncOpenAI, at: float, prompt: Prompt) -> None:
        await asyncio.sleep(begin + at - loop.time())
        tokens = await ask_one(client, asking, prompt)
        found.append(1e3 * (loop.time() - begin - at) / tokens)

    async with asking.client() as client:
        times = poisson(rate, len(prompts), seed=0)
        await asyncio.gather(*(ask(client, *one) for one in zip(times, prompts, strict=True)))
    return Arrivals(
        rate=rate, requests=len(prompts), shared=shared, mean=round(statistics.fmean(found), 2),
        normalised=_points(found),
    )  # fmt: skip


def _points(values: list[float]) -> Points:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return Points(p50=round(cuts[49], 2), p99=round(cuts[98], 2))
