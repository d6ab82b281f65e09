"""Whether samples have the same bits in batches of other sizes, and what that costs.

    python -m benchmarks.same_bits llama3-8b --load gsm8k --rows 1024 --rows 256 --rows 32

One shape of random weights, one job, one engine after the other in this process: in the
deterministic mode for each number of rows, once more with a KV cache so small that samples are
preempted, and then in the plain mode. Every sample is compared with that of the first engine:
tokens and log-probability, as bits.
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from typing import Annotated, Any

import torch
import typer

from sharegen.bench.engines import Engines, give_memory_back
from sharegen.bench.shapes import vocabulary, workload
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.parallel.opening import open_engine

Samples = dict[tuple[int, int], tuple[list[int], float]]


def draw(engine: Engine, requests: list[Request]) -> tuple[Samples, float]:
    """All samples of a job by (request, sample), and the seconds that they took."""
    engine.reset_prefix_cache()
    torch.cuda.synchronize()
    start = time.perf_counter()
    samples = {
        (done.request.key, done.sample): (list(done.token_ids), done.cumulative_logprob)
        for done in engine.generate(requests)
    }
    torch.cuda.synchronize()
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


def main(
    shape: Annotated[str, typer.Argument(help="A known shape, or a folder with a config.")],
    loads: Annotated[list[str], typer.Option("--load", help="Workloads, each drawn by all.")],
    rows: Annotated[list[int], typer.Option(help="Rows of an engine, for each one engine.")],
    priced: Annotated[
        list[str] | None,
        typer.Option("--price", help="Workloads that the first and the plain engine alone draw."),
    ] = None,
    small_cache: Annotated[int, typer.Option(help="Bytes of a cache that preempts.")] = 0,
    cache: Annotated[int, typer.Option(help="Bytes of the KV cache of the others.")] = 16 << 30,
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    repeats: Annotated[int, typer.Option(help="Times that a job is drawn once more.")] = 1,
    plain: Annotated[bool, typer.Option(help="Whether the plain mode comes last.")] = True,
    temperature: float = 0.7,
) -> None:
    """Print a line of JSON for each engine and workload."""
    engines = Engines(shape, "cuda", torch.bfloat16, quantization=quantization)
    priced = priced or []
    jobs = {load: requests_of(load, shape, temperature) for load in [*loads, *priced]}
    first: dict[str, Samples] = {}
    cases = [(True, count, cache) for count in rows]
    cases += [(True, rows[0], small_cache)] if small_cache else []
    cases += [(False, rows[0], cache)] if plain else []
    for deterministic, count, memory in cases:
        give_memory_back()
        config = replace(
            engines._setting.config, max_sequences=count, kv_cache_memory=memory,
            kv_cache_dtype=kv_cache_dtype, deterministic=deterministic,  # type: ignore[arg-type]
        )  # fmt: skip
        started = time.perf_counter()
        engine = open_engine(replace(engines._setting, config=config))
        opened = time.perf_counter() - started
        is_first = deterministic and (count, memory) == (rows[0], cache)
        for load, requests in jobs.items():
            if load in priced and deterministic and not is_first:
                continue
            before = engine.stats.preemptions
            samples, seconds = draw(engine, requests)
            preemptions = engine.stats.preemptions - before
            times = [seconds] + [draw(engine, requests)[1] for _ in range(repeats)]
            tokens = sum(len(drawn) for drawn, _ in samples.values())
            result = {
                "load": load, "deterministic": deterministic, "rows": count,
                "opened": round(opened, 1), "seconds": [round(each, 3) for each in times],
                "tokens_per_second": round(tokens / min(times)), "preemptions": preemptions,
                **compare(first.setdefault(load, samples), samples),
            }  # fmt: skip
            print(json.dumps(result), flush=True)
        engine.close()
        del engine


def requests_of(load: str, shape: str, temperature: float) -> list[Request]:
    """The requests of a workload, whose samples are of one length."""
    job = workload(load)
    params = SamplingParams(
        n=job.samples, temperature=temperature, max_tokens=job.output, ignore_eos=True
    )
    prompts = job.prompts(vocabulary(shape))
    return [Request(i, p, params, range(job.samples)) for i, p in enumerate(prompts)]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    typer.run(main)
