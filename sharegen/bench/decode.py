"""`sharegen bench decode`: whole jobs of random prompts, against the ceiling of the same run."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch

from sharegen.bench.breakdown import PhaseClock, StepProfile
from sharegen.bench.ceiling import attention_left_out
from sharegen.bench.engines import Engines, tree_of
from sharegen.bench.shapes import WARM_UP, Workload, workload
from sharegen.bench.table import print_table
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.job.sharing_plan import fitting_sequences
from sharegen.kernels.cost import EACH_ROW
from sharegen.results.screen.kv_use import wasted_share

_ALL_LEVELS = 2  # of the workloads' trees: prefix, problem
MOST_ROWS = 4096  # more only make the steps longer: the matrix products are at their best
_RUNS = 3  # of which the median counts
_ENOUGH = 12.0  # seconds of runs after which no further one begins
_PROFILED = 64  # tokens a sample of the job that is profiled


def decode(
    shape: str = "llama3-8b",
    loads: Sequence[str] = ("gsm8k",),
    *,
    levels: int = 2,
    max_sequences: int = 1024,
    temperature: float = 0.7,
    dtype: str = "bfloat16",
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    device: str = "cuda",
    compile_model: bool = True,
    ceiling: bool = True,
    parts: bool = True,
    largest: bool = False,
    tensor_parallel_size: int = 1,
    read_by_each: bool = False,
) -> Iterator[dict[str, Any]]:
    """Run workloads on one engine of one shape; prints a table of each to stderr, and yields its
    numbers as soon as it is measured.

    shape: a known shape or a model folder (its config; weights are random). loads: names of
    workloads, or five numbers each. levels: how much is shared, as in Hydragen's section 4: 0
    nothing (every sequence stores and reads its whole prompt), 1 the prefix alone, 2 prefix and
    problems. max_sequences: rows, at most; fewer where the workloads have fewer samples or memory
    does not hold them. quantization: "fp8" for FP8 weights; kv_cache_dtype: "fp8" for the KV that
    one sequence alone reads. largest: of one workload alone, also with as many rows as memory holds
    (fitting_rows), up to 4,096. parts: of a full step.
    tensor_parallel_size: GPUs that the model is cut among; then without ceiling and largest.
    read_by_each: what is shared is stored once, and read by each row for itself, as
    PagedAttention does.
    """
    jobs = [workload(load) for load in loads]
    begun = time.perf_counter()
    engines = Engines(
        shape,
        device,
        getattr(torch, dtype),
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        compile_model=compile_model,
        ranks=tensor_parallel_size,
    )
    costs = EACH_ROW if read_by_each else None
    samples = max(job.problems * job.samples for job in jobs)
    engine = engines.make(min(max_sequences, samples), levels, costs)
    start_seconds = time.perf_counter() - begun
    for load, job in zip(loads, jobs, strict=True):
        fitting = rows_that_fit(engine, job, levels)
        rows = min(engine.scheduler.max_sequences, fitting, job.problems * job.samples)
        result: dict[str, Any] = {"bench": "decode", "shape": shape, "workload": load}
        result |= asdict(job) | {"start_seconds": start_seconds}
        result |= {"quantization": quantization, "weights_bytes": engine.model.weights_bytes}
        result |= {"kv_cache_dtype": kv_cache_dtype, "ranks": tensor_parallel_size}
        result |= {"levels": levels, "read_by_each": read_by_each, "mixers": engine.stats.mixers}
        result |= {"rows": rows, "fitting_rows": fitting}
        result |= measure(engine, job, levels, temperature)
        if parts:
            result |= _parts(engine, job, levels, temperature, rows)
        if ceiling and tensor_parallel_size == 1:
            with attention_left_out(engine):
                bound = measure(engine, job, levels, temperature)
            result["ceiling_tokens_per_second"] = bound["tokens_per_second"]
            result["ceiling_decode_seconds"] = bound["decode_seconds"]
            result["share_of_ceiling"] = result["tokens_per_second"] / bound["tokens_per_second"]
        if largest and tensor_parallel_size == 1:
            del engine
            engine = engines.make(min(MOST_ROWS, fitting), levels, costs)
            most = measure(engine, job, levels, temperature)
            # A larger batch may leave less memory to the KV cache.
            result["largest_rows"] = min(
                engine.scheduler.max_sequences, rows_that_fit(engine, job, levels)
            )
            result["largest_mean_running"] = most["mean_running"]
            result["largest_tokens_per_second"] = most["tokens_per_second"]
        print_table(result)
        yield result
    engine.close()


def rows_that_fit(engine: Engine, job: Workload, levels: int) -> int:
    """Sequences of the job that fit the KV cache together, at the levels that are shared."""
    return requests_that_fit(engine, _requests(engine, job, levels, SamplingParams(n=job.samples)),
                             levels, job.output)  # fmt: skip


def requests_that_fit(engine: Engine, requests: Sequence[Request], levels: int, output: int) -> int:
    """Samples of requests, of `output` tokens each, that fit together; as many of each request."""
    pool = engine.pool
    tree = tree_of(pool.block_size, levels)
    tree.insert(
        [request.prompt_token_ids for request in requests],
        alone=[request.is_alone(pool.readers) for request in requests],
    )
    samples = len(requests[0].samples)
    return max(1, fitting_sequences(tree, samples, output, pool.num_blocks, pool.blocks_per_full))


def measure(engine: Engine, job: Workload, levels: int, temperature: float) -> dict[str, Any]:
    """The run of a whole job with the median wall time, of those that `runs_seconds` lists.

    Kernels are compiled and graphs captured in the same job with few tokens, which is run before.
    """
    run_job(engine, replace(job, output=min(job.output, WARM_UP)), levels, temperature)
    runs: list[dict[str, Any]] = []
    while len(runs) < _RUNS and sum(run["seconds"] for run in runs) < _ENOUGH:
        runs.append(measure_again(engine, job, levels, temperature))
    seconds = [run["seconds"] for run in runs]
    middle = seconds.index(statistics.median_low(seconds))
    return runs[middle] | {"runs_seconds": seconds}


def measure_again(engine: Engine, job: Workload, levels: int, temperature: float) -> dict[str, Any]:
    """Wall time of a job that was run before.

    The seconds of prefill and of decoding are the GPU's own, and on a CPU those of whole steps.
    """
    clock = PhaseClock(engine) if engine.model.device.type == "cuda" else None
    engine.observer.meter.forget_peak()
    before = asdict(engine.stats)
    with clock or nullcontext():
        seconds, tokens = run_job(engine, job, levels, temperature)
    stats = {
        name: value - before[name]
        for name, value in asdict(engine.stats).items()
        if isinstance(value, (int, float))
    }
    spent = clock.seconds() if clock is not None else stats
    read = Counter(engine.stats.steps_by_levels) - Counter(before["steps_by_levels"])
    places = Counter(engine.stats.kv_in_steps) - Counter(before["kv_in_steps"])
    decoded = tokens - job.problems * job.samples  # prefill draws the first one of each sample
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "prefill_seconds": spent["prefill_seconds"],
        "prefill_tokens_per_second": stats["prompt_tokens_computed"] / spent["prefill_seconds"],
        "decode_seconds": spent["decode_seconds"],
        "decode_tokens_per_second": decoded / spent["decode_seconds"] if decoded else 0.0,
        "mean_running": decoded / max(1, stats["decode_steps"]),
        "decode_steps": stats["decode_steps"],
        "prefill_steps": stats["prefill_steps"],
        "prompt_tokens_computed": stats["prompt_tokens_computed"],
        "preemptions": stats["preemptions"],
        **{f"peak_kv_{name}_bytes": count for name, count in engine.stats.peak_kv.items()},
        "wasted_blocks": wasted_share(places),
        "steps_by_levels": dict(read),
    }


def _parts(
    engine: Engine, job: Workload, levels: int, temperature: float, rows: int
) -> dict[str, float]:
    """Where the time of a step with `rows` sequences goes, from one more job."""
    with StepProfile(engine, rows) as profile:
        run_job(engine, replace(job, output=min(job.output, _PROFILED)), levels, temperature)
    return profile.milliseconds()


def run_job(engine: Engine, job: Workload, levels: int, temperature: float) -> tuple[float, int]:
    """Return the seconds and tokens of the whole job, prompts and all."""
    engine.reset_prefix_cache()
    params = SamplingParams(
        n=job.samples, temperature=temperature, max_tokens=job.output, ignore_eos=True
    )
    requests = _requests(engine, job, levels, params)
    _synchronize(engine)
    start = time.perf_counter()
    tokens = sum(len(completion.token_ids) for completion in engine.generate(requests))
    _synchronize(engine)
    return time.perf_counter() - start, tokens


def _requests(engine: Engine, job: Workload, levels: int, params: SamplingParams) -> list[Request]:
    prompts = job.prompts(engine.model.vocab_size)
    requests = [Request(i, p, params, range(job.samples)) for i, p in enumerate(prompts)]
    if levels < _ALL_LEVELS:
        # What a request's samples share is the last level: without it each is its own request.
        requests = [
            replace(request, key=request.key * job.samples + sample, samples=(sample,))
            for request in requests
            for sample in request.samples
        ]
    return requests


def _synchronize(engine: Engine) -> None:
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize(engine.model.device)
