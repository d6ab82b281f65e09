"""Whether samples have the same bits in batches of other sizes, and what that costs.

One shape of random weights, one job, one engine after the other in this process: in the
deterministic mode for each number of rows, once more with a KV cache so small that samples are
preempted, then with bits that do not depend on the tree (`any_tree`), and then in the plain mode.
Every sample is compared with that of the first engine: tokens and log-probability, as bits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.card.machine import Machine
from benchmarks.measurement import Engines as Sizes
from benchmarks.measurement import Measurement, Numbers, Price
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import vocabulary, workload
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine

Samples = dict[tuple[int, int], tuple[list[int], float]]


def draw(engine: Engine, requests: list[Request], hopes: bool) -> tuple[Samples, float]:
    """All samples of a job by (request, sample), and the seconds that they took.

    hopes: whether admission believes that samples end early, and so takes too many.
    """
    lengths = Lengths(ended=Counter({2: 1 << 20})) if hopes else None
    engine.reset_prefix_cache()
    start = time.perf_counter()
    samples = {
        (done.request.key, done.sample): (list(done.token_ids), done.cumulative_logprob)
        for done in engine.generate(requests, lengths=lengths)
    }
    return samples, time.perf_counter() - start


def compare(first: Samples, other: Samples) -> dict[str, Any]:
    """How many samples have other tokens, how many other bits, and where tokens part first."""
    tokens = [key for key in first if first[key][0] != other[key][0]]
    bits = [key for key in first if first[key] != other[key]]
    parts = [
        next(i for i, (a, b) in enumerate(zip(first[k][0], other[k][0], strict=True)) if a != b)
        for k in tokens
    ]
    return {"samples": len(first), "other_tokens": len(tokens), "other_bits": len(bits),
            "first_parting": min(parts, default=None)}  # fmt: skip


@dataclass(frozen=True)
class SameBitsSettings:
    """What is drawn, and by which engines.

    shape: a known shape, or a folder with a config. loads: workloads that all engines draw; priced:
    those that no further deterministic engine draws. rows: of the deterministic engines. cache,
    small_cache: bytes of their KV caches; of one more engine, 0 for none. repeats: how often each
    job is drawn once more, for its time. any_tree, plain: whether there are such engines, too.
    """

    shape: str
    loads: Sequence[str]
    rows: Sequence[int]
    priced: Sequence[str] = ()
    small_cache: int = 0
    cache: int = 16 << 30
    device: str = "cuda"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    repeats: int = 1
    any_tree: bool = False
    plain: bool = True
    temperature: float = 0.7


def bench_same_bits(asked: SameBitsSettings) -> Iterator[dict[str, Any]]:
    """What each engine drew of each workload, as soon as it did."""
    engines = Engines(
        asked.shape, asked.device, torch.float32 if asked.device == "cpu" else torch.bfloat16,
        quantization=asked.quantization, kv_cache_dtype=asked.kv_cache_dtype,
    )  # fmt: skip
    every = [*asked.loads, *asked.priced]
    jobs = {load: requests_of(load, asked.shape, asked.temperature) for load in every}
    first: dict[str, Samples] = {}
    most, cache = asked.rows[0], asked.cache
    cases = [(True, False, count, cache) for count in asked.rows]
    cases += [(True, False, most, asked.small_cache)] if asked.small_cache else []
    cases += [(True, True, most, cache)] if asked.any_tree else []
    cases += [(False, False, most, cache)] if asked.plain else []
    for deterministic, any_tree, count, memory in cases:
        started = time.perf_counter()
        engine = engines.make(
            count, None, kv_cache_memory=memory, deterministic=deterministic, any_tree=any_tree
        )
        opened = time.perf_counter() - started
        is_further = deterministic and not any_tree and (count, memory) != (most, cache)
        for load, requests in jobs.items():
            if load in asked.priced and is_further:
                continue
            before = engine.stats.preemptions
            hopes = memory != cache
            samples, seconds = draw(engine, requests, hopes)
            preemptions = engine.stats.preemptions - before
            times = [seconds] + [draw(engine, requests, hopes)[1] for _ in range(asked.repeats)]
            tokens = sum(len(drawn) for drawn, _ in samples.values())
            yield {
                "load": load, "deterministic": deterministic, "any_tree": any_tree, "rows": count,
                "opened": round(opened, 1), "seconds": [round(each, 3) for each in times],
                "tokens_per_second": round(tokens / min(times)), "preemptions": preemptions,
                **compare(first.setdefault(load, samples), samples),
            }  # fmt: skip
        del engine  # before there is another


def requests_of(load: str, shape: str, temperature: float) -> list[Request]:
    """The requests of a workload, whose samples are of one length."""
    job = workload(load)
    params = SamplingParams(
        n=job.samples, temperature=temperature, max_tokens=job.output, ignore_eos=True
    )
    prompts = job.prompts(vocabulary(shape))
    return [Request(i, p, params, range(job.samples)) for i, p in enumerate(prompts)]


def price_row(
    asked: SameBitsSettings, drawn: Sequence[dict[str, Any]], machine: Machine, command: str
) -> Measurement | None:
    """The row of what `bench_same_bits` yielded; None where the deterministic mode alone drew."""
    prices = tuple(_prices(drawn))
    if not prices:
        return None
    gpus = 0 if asked.device == "cpu" else 1
    card, today = machine.card(gpus), datetime.now(UTC).date()
    precision = "FP8" if asked.quantization else "bf16" if gpus else "float32"
    row = f"same-bits-{Path(asked.shape).name}{'-fp8' if asked.quantization else ''}"
    row += "-any-tree" if asked.any_tree else ""
    every = [*asked.loads, *asked.priced]
    row += f"-{every[0].replace(',', '-')}" if len(every) == 1 and every != ["gsm8k"] else ""
    made = Measurement.model_construct(
        name=f"{today}-{card.short}-{row}", row=row, kind="same-bits", command=command, date=today,
        commit=machine.commit, versions=machine.versions(gpus), card=card,
        shape=Path(asked.shape).name, precision=precision, engines=Sizes(sequences=asked.rows[0]),
        numbers=Numbers(prices=prices), printed=list(drawn),
    )  # fmt: skip
    unknown = dict.fromkeys(made.missing(), "this machine does not tell it")
    return Measurement.model_validate(made.model_copy(update={"unknown": unknown}).model_dump())


def _prices(drawn: Sequence[dict[str, Any]]) -> Iterator[Price]:
    """A price for each workload that another mode than the deterministic one drew, too."""
    for load in dict.fromkeys(each["load"] for each in drawn):
        of_load = [each for each in drawn if each["load"] == load]
        first, *further = (e for e in of_load if e["deterministic"] and not e["any_tree"])
        free = [e["tokens_per_second"] for e in of_load if e["any_tree"]]
        plain = [e["tokens_per_second"] for e in of_load if not e["deterministic"]]
        if free or plain:
            yield Price(
                workload=load, deterministic=first["tokens_per_second"],
                any_tree=free[0] if free else None, plain=plain[0] if plain else None,
                sequences=first["rows"], samples=first["samples"],
                differing=sum(e["other_bits"] for e in further) if further else None,
            )  # fmt: skip
