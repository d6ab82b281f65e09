"""`sharegen bench decode --workers N`: the same job on N engines, and then on one of them.

The engines run as those of any job with workers do, in processes of their own; only their weights
are random, and each makes its own.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from sharegen.bench.shapes import WARM_UP, load_random, vocabulary, workload
from sharegen.bench.table import print_table
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.errors import SharegenError
from sharegen.results.screen.kv_use import wasted_share


def decode_on_workers(
    shape: str,
    load: str,
    workers: int,
    *,
    max_sequences: int,
    temperature: float,
    dtype: str,
    quantization: str | None,
    device: str,
    compile_model: bool,
) -> dict[str, Any]:
    """Run one workload on `workers` engines, then on the first of them; returns the numbers.

    Prints a table to stderr, and the stages as they pass. As for `decode`; max_sequences: rows of
    each engine. Each job is run with few tokens before it is timed, from the first request sent to
    the last completion received. Peaks of the KV cache are those of all engines, each at a step of
    its own, added up.
    """
    job = workload(load)
    params = SamplingParams(
        n=job.samples, temperature=temperature, max_tokens=job.output, ignore_eos=True
    )
    prompts = job.prompts(vocabulary(shape))
    requests = [Request(i, p, params, range(job.samples)) for i, p in enumerate(prompts)]
    config = EngineConfig(max_sequences=max_sequences, compile=compile_model)
    make = partial(load_random, shape, getattr(torch, dtype), quantization)
    setting = Setting(shape, None, config, device=device, load=make)  # type: ignore[arg-type]
    _say(f"{workers} engines start")
    started = time.perf_counter()
    with closing(open_engine(setting, workers, apart=True)) as driver:
        assert isinstance(driver, Driver)
        driver.gather()
        start_seconds = time.perf_counter() - started
        _say(f"they are ready after {start_seconds:.1f} s")
        many = _measure(driver, requests, workers)
        peak = {f"peak_kv_{name}_bytes": count for name, count in driver.stats.peak_kv.items()}
        wasted = wasted_share(driver.stats.kv_in_steps)
        driver.stop_workers(but=1)
        one = _measure(driver, requests, 1)
    alone = PrefixTree.build(prompts, config.block_size).num_tokens
    result: dict[str, Any] = {"bench": "decode", "shape": shape, "workload": load, **asdict(job)}
    result |= {"quantization": quantization, "workers": workers, "max_sequences": max_sequences}
    result |= {"start_seconds": start_seconds} | {f"one_{name}": one[name] for name in one} | many
    result["prompt_tokens_duplicated"] = many["prompt_tokens_computed"] - alone
    result |= peak | {"wasted_blocks": wasted, "speedup": one["seconds"] / many["seconds"]}
    print_table(result)
    return result


def _measure(driver: Driver, requests: list[Request], workers: int) -> dict[str, Any]:
    """A job's seconds, wall and of the driver alone, when it has been run with few tokens before.

    Raises SharegenError where not all workers live to the end.
    """
    output = min(requests[0].params.max_tokens or WARM_UP, WARM_UP)
    few = [replace(each, params=replace(each.params, max_tokens=output)) for each in requests]
    for _ in driver.generate(few):
        pass
    driver.reset_prefix_cache()
    before = driver.stats.prompt_tokens_computed
    own = time.process_time()
    started = time.perf_counter()
    tokens = sum(len(done.token_ids) for done in driver.generate(requests))
    seconds = time.perf_counter() - started
    if len(driver.pids) < workers:
        raise SharegenError("a worker is gone: there is nothing to compare")
    _say(f"{workers}: {tokens:,} tokens in {seconds:.2f} s")
    return {
        "seconds": seconds,
        "driver_seconds": time.process_time() - own,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "prompt_tokens_computed": driver.stats.prompt_tokens_computed - before,
    }


def _say(stage: str) -> None:
    print(stage, file=sys.stderr, flush=True)
