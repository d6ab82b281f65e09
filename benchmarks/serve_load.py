"""`python -m benchmarks serve-load`: a server under a harness's load, beside `LLM.generate`.

The rate: so many requests at once through the openai client, n = 1 each, as trainers and harnesses
send them, over prompts that share examples and of which each is asked several times. The yardstick
is one call of `LLM.generate` with the same prompts and samples, on the same machine, after the
server has ended. The latencies: so many clients that ask one after the other, by streams.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.arrivals import poisson
from benchmarks.card.machine import find_machine
from benchmarks.measurement import Arrivals, Latency, Measurement, Numbers, Points, Workload
from benchmarks.serving import Spawned, spawned
from sharegen import LLM, SamplingParams
from sharegen.workload.recipe import RECIPES

_DATA = RECIPES / "tinymath"
_SHOTS = 10
_COUNTS = (
    "prompt_tokens_total", "prompt_tokens_computed_total", "prefill_steps_total",
    "decode_steps_total", "prefill_seconds_total", "decode_seconds_total",
)  # fmt: skip
_CLIENTS = (1, 8, 64)
_ARRIVING = 48  # requests of each rate
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
    load: Load,
    processes: Sequence[int],
    clients: Sequence[int],
    rates: Sequence[float],
    flags: Sequence[str],
    commit: str | None,
) -> Iterator[dict[str, Any]]:
    """What was measured, each as soon as it is known, and last of all the whole as a measurement.

    processes: that ask together, each its part of all, one number after the other; the first one's
    rate is the measurement's. flags: of `sharegen serve`. commit: of the code, where there is no
    clone to ask.
    """
    machine = find_machine(commit)
    prompts, model = load.prompts(), load.model
    with spawned(model, *flags) as server:
        warm = [f"So far: {prompt}" for prompt in prompts]  # which share nothing with the others
        _rate(server, load, warm, 1)  # kernels are compiled and graphs captured by the first load
        measured: list[dict[str, Any]] = []
        for count in processes or (1,):
            again = prompts if not measured else [f"{count}: {prompt}" for prompt in prompts]
            measured.append(_rate(server, load, again, count))
            yield measured[-1]
        rate = measured[0]
        latencies = []
        for count in clients or _CLIENTS:
            latencies.append(asyncio.run(_latencies(server, load, prompts, count)))
            yield latencies[-1].model_dump()
        arrivals = []
        for each in rates:
            for shared in (True, False):
                arrivals.append(asyncio.run(_arriving(server, load, prompts, each, shared)))
                yield arrivals[-1].model_dump()
        gpus = _gpus_of(flags) if machine.gpus else 0
    seconds, tokens = _by_llm(load, prompts)
    call = tokens / seconds
    yield {"call_tokens_per_second": call, "ratio": rate["tokens_per_second"] / call}
    card, today = machine.card(gpus), datetime.date.today()
    row = f"serve-{Path(model).name}"
    kind = card.name.lower().replace("nvidia ", "").split()[0] if gpus else "cpu"
    found = Measurement(
        name=f"{today}-{kind}-{row}", row=row, kind="serve", date=today, commit=machine.commit,
        command="python -m benchmarks serve-load " + " ".join(sys.argv[2:]),
        versions=machine.versions(gpus), card=card, shape=Path(model).name,
        workload=Workload(
            name=f"{load.at_once} requests at once",
            problems=-(-load.requests // load.samples_of_a_prompt),
            samples=load.samples_of_a_prompt,
            output=load.max_tokens,
        ),
        numbers=Numbers(
            tokens_per_second=rate["tokens_per_second"], tokens=rate["tokens"],
            seconds=rate["seconds"], call_tokens_per_second=call, latencies=tuple(latencies),
            arrivals=tuple(arrivals),
        ),
        printed=measured,
    )  # fmt: skip
    yield found.model_dump(mode="json", exclude_defaults=True)


def _gpus_of(flags: Sequence[str]) -> int:
    """GPUs of a server with these flags, each written as --name=value."""
    said = dict(flag.partition("=")[::2] for flag in flags)
    return math.prod(int(said.get(name, 1)) for name in ("--workers", "--tensor-parallel-size"))


def _rate(server: Spawned, load: Load, prompts: list[str], processes: int) -> dict[str, Any]:
    """What all requests took, and what the server counted meanwhile."""
    before, cpu, start = server.metrics(), server.cpu_seconds, time.perf_counter()
    each = -(-len(prompts) // processes)
    parts = [prompts[at : at + each] for at in range(0, len(prompts), each)]
    own = replace(load, at_once=-(-load.at_once // processes))
    with ProcessPoolExecutor(len(parts), get_context("fork")) as clients:
        asked = list(clients.map(partial(_ask, server, own), parts))
    seconds = time.perf_counter() - start
    tokens, own_cpu = sum(tokens for tokens, _ in asked), sum(used for _, used in asked)
    server_cpu, after = server.cpu_seconds - cpu, server.metrics()
    counts = {
        name.removesuffix("_total"): after[f"sharegen_{name}"] - before[f"sharegen_{name}"]
        for name in _COUNTS
    }
    return {
        **asdict(load), "processes": processes,
        "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds,
        "cpu_seconds": round(server_cpu, 2), "client_cpu_seconds": round(own_cpu, 2), **counts,
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


def _ask(server: Spawned, load: Load, prompts: list[str]) -> tuple[int, float]:
    """The tokens of requests, and the processor time that asking took."""
    start = time.process_time()
    return asyncio.run(_together(server, load, prompts)), time.process_time() - start


async def _together(server: Spawned, load: Load, prompts: list[str]) -> int:
    """The tokens of requests, of which so many are always under way."""
    room = asyncio.Semaphore(load.at_once)

    async def ask(client: AsyncOpenAI, prompt: str) -> int:
        async with room:
            answer = await client.completions.create(
                model=load.model, prompt=prompt, max_tokens=load.max_tokens,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        return sum(await asyncio.gather(*(ask(client, prompt) for prompt in prompts)))


async def _latencies(server: Spawned, load: Load, prompts: list[str], clients: int) -> Latency:
    """Milliseconds to the first token, and for each further one, of clients side by side."""
    firsts: list[float] = []
    each: list[float] = []

    async def ask(client: AsyncOpenAI, number: int) -> None:
        for turn in range(_EACH):
            prompt = prompts[(number * _EACH + turn) % len(prompts)]
            start, times = time.perf_counter(), []
            stream = await client.completions.create(
                model=load.model, prompt=prompt, max_tokens=load.max_tokens, stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )  # fmt: skip
            async for _ in stream:
                times.append(time.perf_counter())
            if turn and len(times) > 1:
                firsts.append(1e3 * (times[0] - start))
                each.append(1e3 * (times[-1] - times[0]) / (load.max_tokens - 1))

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        await asyncio.gather(*(ask(client, number) for number in range(clients)))
    return Latency(clients=clients, first_token=_points(firsts), token=_points(each))


async def _arriving(
    server: Spawned, load: Load, prompts: list[str], rate: float, shared: bool
) -> Arrivals:
    """Normalised latency, seconds from arrival to end by the tokens, of requests at random times.

    Source: ChunkAttention (2402.15220), figure 5: Poisson arrivals, `rate` a second on average.
    """
    prompts = [prompts[i * load.samples_of_a_prompt % len(prompts)] for i in range(_ARRIVING)]
    if not shared:
        prompts = [f"{rate:g}.{i}. {prompt}" for i, prompt in enumerate(prompts)]
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.1
    found: list[float] = []

    async def ask(client: AsyncOpenAI, at: float, prompt: str) -> None:
        await asyncio.sleep(begin + at - loop.time())
        answer = await client.completions.create(
            model=load.model, prompt=prompt, max_tokens=load.max_tokens,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        assert answer.usage is not None
        found.append((loop.time() - begin - at) / answer.usage.completion_tokens)

    async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=3600) as client:
        times = poisson(rate, len(prompts), seed=0)
        await asyncio.gather(*(ask(client, *one) for one in zip(times, prompts, strict=True)))
    values = [1e3 * value for value in found]
    return Arrivals(
        rate=rate, requests=len(prompts), shared=shared, mean=round(statistics.fmean(values), 2),
        normalised=_points(values),
    )  # fmt: skip


def _points(values: list[float]) -> Points:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return Points(p50=round(cuts[49], 2), p99=round(cuts[98], 2))


def _by_llm(load: Load, prompts: list[str]) -> tuple[float, int]:
    """Seconds and tokens of one call with the same prompts, each once with all its samples."""
    each = load.samples_of_a_prompt
    params = SamplingParams(n=each, max_tokens=load.max_tokens, ignore_eos=True)
    with LLM(_DATA / "model" if load.model == "tinymath" else load.model) as llm:
        llm.generate(prompts[::each], params)
        llm.reset_prefix_cache()
        start = time.perf_counter()
        outputs = llm.generate(prompts[::each], params)
        seconds = time.perf_counter() - start
    return seconds, sum(len(one.token_ids) for found in outputs for one in found.outputs)
