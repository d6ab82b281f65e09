"""`python -m benchmarks serve-load`: a server under a harness's load, beside `LLM.generate`.

The rate: so many requests at once through the openai client, n = 1 each, as trainers and harnesses
send them, over prompts that share examples and of which each is asked several times. The yardstick
is one call of `LLM.generate` with the same prompts and samples, on the same machine, after the
server has ended. The latencies: so many clients that ask one after the other, by streams.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from openai import AsyncOpenAI

from benchmarks.arrivals import poisson
from benchmarks.serving import Spawned, spawned
from sharegen import LLM, SamplingParams
from sharegen.workload.recipe import RECIPES

_DATA = RECIPES / "tinymath"
_SHOTS = 10
_COUNTS = (
    "prompt_tokens_total", "prompt_tokens_computed_total", "prefill_steps_total",
    "decode_steps_total",
)  # fmt: skip
_CLIENTS = (1, 8, 64)
_EACH = 4  # requests of a client, of which the first is not counted


@dataclass(frozen=True)
class Load:
    """What is asked of a model: so many requests, of which so many are under way at once.

    samples: requests of each prompt. max_tokens: of each answer.
    """

    model: str
    requests: int
    at_once: int
    samples_of_a_prompt: int
    max_tokens: int

    def prompts(self) -> list[str]:
        """That of each request."""
        each = self.samples_of_a_prompt
        made = _prompts(-(-self.requests // each))
        return [prompt for prompt in made for _ in range(each)][: self.requests]


def serve_load(
    load: Load, clients: list[int], rates: list[float], flags: list[str]
) -> dict[str, Any]:
    """Both rates in tokens a second, their ratio, and latencies by clients and by arrivals."""
    prompts, model, max_tokens = load.prompts(), load.model, load.max_tokens
    with spawned(model, *flags) as server:
        asyncio.run(_together(server, model, prompts[:2], 2, max_tokens))  # what is first is slow
        before, cpu, own_cpu = server.metrics(), server.cpu_seconds, time.process_time()
        seconds, tokens = asyncio.run(_together(server, model, prompts, load.at_once, max_tokens))
        own_cpu, server_cpu = time.process_time() - own_cpu, server.cpu_seconds - cpu
        after = server.metrics()
        table = [
            asyncio.run(_latencies(server, model, prompts, count, max_tokens))
            for count in clients or _CLIENTS
        ]
        arrivals = [
            asyncio.run(_arriving(server, model, prompts, rate, max_tokens)) for rate in rates
        ]
    own_seconds, own_tokens = _by_llm(model, prompts, load.samples_of_a_prompt, max_tokens)
    rate, own = tokens / seconds, own_tokens / own_seconds
    counts = {
        name.removesuffix("_total"): after[f"sharegen_{name}"] - before[f"sharegen_{name}"]
        for name in _COUNTS
    }
    return {
        **asdict(load),
        "serve": {"seconds": seconds, "tokens": tokens, "tokens_per_second": rate,
                  **counts,
                  "cpu_seconds": round(server_cpu, 2), "client_cpu_seconds": round(own_cpu, 2)},
        "llm": {"seconds": own_seconds, "tokens": own_tokens, "tokens_per_second": own},
        "ratio": rate / own, "latency": table, "arrivals": arrivals,
    }  # fmt: skip


def _prompts(count: int) -> list[str]:
    """Questions of the bundled data behind examples that all of them share."""
    shots = _rows("train.jsonl")[:_SHOTS]
    head = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in shots)
    questions = [question for question, _ in _rows("test.jsonl")]
    return [f"{head}Question: {questions[i % len(questions)]}\nAnswer:" for i in range(count)]


def _rows(name: str) -> list[tuple[str, str]]:
    lines = (_DATA / name).read_text(encoding="utf-8").splitlines()
    return [(row["question"], row["answer"]) for row in map(json.loads, lines)]


async def _together(
    server: Spawned, model: str, prompts: list[str], at_once: int, max_tokens: int
) -> tuple[float, int]:
    """Seconds and tokens of requests, of which so many are always under way."""
    room = asyncio.Semaphore(at_once)

    async def ask(client: AsyncOpenAI, prompt: str) -> int:
        async with room:
            answer = await client.completions.create(
                model=model, prompt=prompt, max_tokens=max_tokens, extra_body={"ignore_eos": True}
            )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        start = time.perf_counter()
        tokens = await asyncio.gather(*(ask(client, prompt) for prompt in prompts))
        seconds = time.perf_counter() - start
    return seconds, sum(tokens)


async def _latencies(
    server: Spawned, model: str, prompts: list[str], clients: int, max_tokens: int
) -> dict[str, Any]:
    """Milliseconds to the first token, and for each further one, of clients side by side."""
    firsts: list[float] = []
    each: list[float] = []

    async def ask(client: AsyncOpenAI, number: int) -> None:
        for turn in range(_EACH):
            prompt = prompts[(number * _EACH + turn) % len(prompts)]
            start, times = time.perf_counter(), []
            stream = await client.completions.create(
                model=model, prompt=prompt, max_tokens=max_tokens, stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            async for _ in stream:
                times.append(time.perf_counter())
            if turn and len(times) > 1:
                firsts.append(1e3 * (times[0] - start))
                each.append(1e3 * (times[-1] - times[0]) / (max_tokens - 1))

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        await asyncio.gather(*(ask(client, number) for number in range(clients)))
    return {"clients": clients, "first_token_ms": _points(firsts), "token_ms": _points(each)}


async def _arriving(
    server: Spawned, model: str, prompts: list[str], rate: float, max_tokens: int
) -> dict[str, Any]:
    """Normalised latency, seconds from arrival to end by the tokens, of requests at random times.

    Source: ChunkAttention (2402.15220), figure 5: Poisson arrivals, `rate` a second on average.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.1
    found: list[float] = []

    async def ask(client: AsyncOpenAI, at: float, prompt: str) -> None:
        await asyncio.sleep(begin + at - loop.time())
        answer = await client.completions.create(
            model=model, prompt=prompt, max_tokens=max_tokens, extra_body={"ignore_eos": True}
        )
        assert answer.usage is not None
        found.append((loop.time() - begin - at) / answer.usage.completion_tokens)

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        times = poisson(rate, len(prompts), seed=0)
        await asyncio.gather(*(ask(client, *one) for one in zip(times, prompts, strict=True)))
    normalised = {"mean": round(1e3 * statistics.fmean(found), 2)}
    normalised |= _points([1e3 * value for value in found])
    return {"rate": rate, "requests": len(prompts), "normalised_ms": normalised}


def _points(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": round(cuts[49], 2), "p99": round(cuts[98], 2)}


def _by_llm(model: str, prompts: list[str], samples: int, max_tokens: int) -> tuple[float, int]:
    """Seconds and tokens of one call with the same prompts, each once with all its samples."""
    params = SamplingParams(n=samples, max_tokens=max_tokens, ignore_eos=True)
    folder = _DATA / "model" if model == "tinymath" else model
    with LLM(folder) as llm:
        llm.generate(prompts[:1], params)
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts[::samples], params)
        seconds = time.perf_counter() - start
    return seconds, sum(len(one.token_ids) for found in outputs for one in found.outputs)
