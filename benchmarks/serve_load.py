"""`python -m benchmarks serve-load`: a server under a harness's load, beside `LLM.generate`.

The rate: so many requests at once, n = 1 each, as trainers and harnesses send them, over prompts
that share examples and of which each is asked several times: as the server's first load, and then
once more for each number of client processes. The yardstick is one call of `LLM.generate` with the
same prompts and samples, on the same machine, after the server has ended. The latencies: so many
clients that ask one after the other, by streams.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.card.machine import find_machine
from benchmarks.measurement import Latency, Measurement, Numbers, Workload
from benchmarks.serve_clients import Asking, Kind, ask_all
from benchmarks.serve_latency import arriving, latencies
from benchmarks.serve_rows import said_by, serve_row
from benchmarks.serving import Spawned, spawned
from sharegen import LLM, SamplingParams
from sharegen.common.cores import available_cores
from sharegen.workload.recipe import RECIPES

_DATA = RECIPES / "tinymath"
_SHOTS = 10
_COUNTS = (
    "prompt_tokens_total", "prompt_tokens_computed_total", "prefill_steps_total",
    "decode_steps_total", "prefill_seconds_total", "decode_seconds_total",
)  # fmt: skip
_CLIENTS = (1, 8, 64)
_ARRIVING = 48  # requests of each rate
_OF_A_PROCESS = 64  # requests under way; beyond that each costs the openai client more


@dataclass(frozen=True)
class Load:
    """What is asked of a model: so many requests, of which so many are under way at once.

    samples: requests of each prompt. max_tokens: of each answer. client: what asks. until_eos:
    whether end tokens end answers, at other times each; else all have max_tokens.
    """

    model: str
    requests: int
    at_once: int
    samples_of_a_prompt: int
    max_tokens: int
    client: Kind = "openai"
    until_eos: bool = False

    def prompts(self) -> list[str]:
        """That of each request."""
        each = self.samples_of_a_prompt
        made = _prompts(-(-self.requests // each))
        return [prompt for prompt in made for _ in range(each)][: self.requests]

    def asking(self, server: Spawned, kind: Kind = "openai") -> Asking:
        return Asking(server.port, self.model, self.max_tokens, self.at_once, kind, self.until_eos)


def serve_load(
    load: Load,
    processes: Sequence[int],
    clients: Sequence[int],
    rates: Sequence[float],
    flags: Sequence[str],
    commit: str | None,
) -> Iterator[dict[str, Any] | Measurement]:
    """What was measured, each as soon as it is known, and last of all the row of all.

    processes: that ask together, each its part of all, one number after the other; the first one's
    rate after the first load is the measurement's. flags: of `sharegen serve`. commit: of the code,
    where there is no clone to ask.
    """
    machine = find_machine(commit)
    prompts, model = load.prompts(), load.model
    processes = processes or (min(available_cores(), -(-load.at_once // _OF_A_PROCESS)),)
    with spawned(model, *flags) as server:
        measured: list[dict[str, Any]] = []
        for turn, count in enumerate((processes[0], *processes)):
            # Each load shares nothing with those before it.
            own = [f"So far {turn}: {prompt}" for prompt in prompts] if turn != 1 else prompts
            measured.append({"load": turn + 1} | _rate(server, load, own, count))
            yield measured[-1]
        rate = measured[1]
        asking = load.asking(server)
        waited = []
        for count in clients or _CLIENTS:
            waited.append(asyncio.run(latencies(asking, prompts, count)))
            yield waited[-1].model_dump()
        arrivals = []
        some = [prompts[i * load.samples_of_a_prompt % len(prompts)] for i in range(_ARRIVING)]
        for each in rates:
            for shared in (True, False):
                asked = some if shared else [f"{each:g}.{i}. {p}" for i, p in enumerate(some)]
                arrivals.append(asyncio.run(arriving(asking, asked, each, shared)))
                yield arrivals[-1].model_dump()
    seconds, tokens, cpu = _by_llm(load, prompts, flags)
    call = tokens / seconds
    yield {
        "call_tokens_per_second": call, "ratio": rate["tokens_per_second"] / call,
        "ratio_of_first_load": measured[0]["tokens_per_second"] / call,
        "call_cpu_seconds": round(cpu, 2), "cpu_ratio": round(rate["cpu_seconds"] / cpu, 2),
    }  # fmt: skip
    ends = "until an end token" if load.until_eos else "of one length"
    workload = Workload(
        name=f"{load.at_once:,} of {load.requests:,} requests at once, answers {ends}",
        problems=-(-load.requests // load.samples_of_a_prompt), samples=load.samples_of_a_prompt,
        output=load.max_tokens,
    )  # fmt: skip
    numbers = Numbers(
        tokens_per_second=rate["tokens_per_second"], tokens=rate["tokens"],
        seconds=rate["seconds"], call_tokens_per_second=call, latencies=tuple(waited),
        arrivals=tuple(arrivals),
    )  # fmt: skip
    what = "serve-until-eos" if load.until_eos else "serve"
    yield serve_row(what, model, flags, machine, workload, numbers, measured)


def serve_latency(
    model: str, max_tokens: int, clients: Sequence[int], flags: Sequence[str], commit: str | None
) -> Iterator[Latency | Measurement]:
    """The latencies of a server that nobody else asks, and last of all the row of all."""
    machine = find_machine(commit)
    load = Load(model, 64, 64, 1, max_tokens)
    prompts = load.prompts()
    with spawned(model, *flags) as server:
        found = []
        for count in clients or _CLIENTS:
            found.append(asyncio.run(latencies(load.asking(server), prompts, count)))
            yield found[-1]
    workload = Workload(name="clients one by one", problems=64, samples=1, output=max_tokens)
    numbers = Numbers(latencies=tuple(found))
    yield serve_row("latency", model, flags, machine, workload, numbers)


def _rate(server: Spawned, load: Load, prompts: list[str], processes: int) -> dict[str, Any]:
    """What all requests took, and what the server counted meanwhile.

    main: of the server's processes the first; http: those beside it that clients reach; the others
    are its engines'.
    """
    before, cpu = server.metrics(), server.cpu_seconds
    main, http = server.main_cpu_seconds, server.http_cpu_seconds
    asked = ask_all(load.asking(server, load.client), prompts, processes)
    seconds = max(each.end for each in asked) - min(each.begin for each in asked)
    tokens = sum(each.tokens for each in asked)
    cpu = server.cpu_seconds - cpu
    main, http = server.main_cpu_seconds - main, server.http_cpu_seconds - http
    after = server.metrics()
    counts = {
        name.removesuffix("_total"): after[f"sharegen_{name}"] - before[f"sharegen_{name}"]
        for name in _COUNTS
    }
    return {
        **asdict(load), "processes": processes,
        "seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds,
        "cpu_seconds": round(cpu, 2),
        "main_ms_a_request": round(1e3 * main / len(prompts), 3),
        "http_ms_a_request": round(1e3 * http / len(prompts), 3),
        "engine_us_a_token": round(1e6 * (cpu - main - http) / tokens, 2),
        "client_ms_a_request": round(1e3 * sum(a.cpu_seconds for a in asked) / len(prompts), 3),
        **counts,
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


_OF_BOTH = {"device": str, "max_sequences": int, "tensor_parallel_size": int, "workers": int}
"""Flags of a server that one call of `LLM` is given, too."""


def _by_llm(load: Load, prompts: list[str], flags: Sequence[str]) -> tuple[float, int, float]:
    """Seconds, tokens and processor time of one call with the same prompts, each once with all its
    samples.

    The second one is timed: of the first, graphs are captured.
    """
    each = load.samples_of_a_prompt
    told = said_by(flags)
    said: Any = {name: kind(told[name]) for name, kind in _OF_BOTH.items() if name in told}
    said["compile"] = True  # as the server does
    params = SamplingParams(n=each, max_tokens=load.max_tokens, ignore_eos=not load.until_eos)
    with LLM(_DATA / "model" if load.model == "tinymath" else load.model, **said) as llm:
        llm.generate(prompts[::each], params)
        llm.reset_prefix_cache()
        start, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts[::each], params)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return seconds, sum(len(one.token_ids) for found in outputs for one in found.outputs), cpu
