"""`sharegen bench decode`: whole jobs of random prompts, against the ceiling of the same run.

The ceiling is the same job with only the attention function replaced by one that copies
(Hydragen's no-attention ceiling, section 4.1): projections, KV store, sampling and scheduling stay.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from sharegen.bench.shapes import Workload, random_model, workload
from sharegen.engine.attention import AttentionContext, StoreAndAttend
from sharegen.engine.engine import Engine, EngineConfig
from sharegen.engine.model import LoadedModel, load_model
from sharegen.engine.request import Request, SamplingParams
from sharegen.kernels.layout import SharedLayout


def decode(
    shape: str = "llama3-8b",
    load: str = "gsm8k",
    *,
    max_sequences: int | None = None,
    temperature: float = 0.7,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    compile_model: bool = True,
    ceiling: bool = True,
    model: LoadedModel | None = None,
) -> dict[str, Any]:
    """Run one workload on one shape; prints a table to stderr and returns the numbers.

    shape: a known shape or a model folder (its config; weights are random). load: a workload's
    name or five numbers. max_sequences: rows; by default all samples, up to 1,024.
    """
    job = workload(load)
    loaded = model or load_model(random_model(shape, device, dtype))
    rows = max_sequences or min(1024, job.problems * job.samples)
    config = EngineConfig(max_sequences=rows, compile=compile_model)
    engine = Engine(loaded, None, config)
    result: dict[str, Any] = {"shape": shape, "workload": load, **asdict(job), "rows": rows}
    result |= _measure(engine, job, temperature)
    if ceiling:
        real = engine.runner.attention
        engine.runner.attention = _Copies(engine)
        if engine.runner.graphs is not None:
            engine.runner.graphs.clear()
        bound = _measure(engine, job, temperature)
        engine.runner.attention = real
        result["ceiling_tokens_per_second"] = bound["tokens_per_second"]
        result["ceiling_step_ms"] = bound["step_ms"]
        result["share_of_ceiling"] = result["tokens_per_second"] / bound["tokens_per_second"]
    for name, value in result.items():
        shown = f"{value:,.3f}" if isinstance(value, float) else value
        print(f"{name:>28}  {shown}", file=sys.stderr)
    return result


def _measure(engine: Engine, job: Workload, temperature: float) -> dict[str, Any]:
    """Wall time of the whole job, after a short one that compiles and captures."""
    prompts = job.prompts(engine.model.vocab_size)

    def run(output: int) -> tuple[float, int]:
        params = SamplingParams(
            n=job.samples, temperature=temperature, max_tokens=output, ignore_eos=True
        )
        requests = [Request(i, p, params, range(job.samples)) for i, p in enumerate(prompts)]
        _synchronize(engine)
        start = time.perf_counter()
        tokens = sum(len(completion.token_ids) for completion in engine.generate(requests))
        _synchronize(engine)
        return time.perf_counter() - start, tokens

    run(min(4, job.output))
    before = asdict(engine.stats)
    seconds, tokens = run(job.output)
    after = asdict(engine.stats)
    steps = after["decode_steps"] - before["decode_steps"]
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "decode_steps": steps,
        "prefill_steps": after["prefill_steps"] - before["prefill_steps"],
        "step_ms": 1e3 * (after["decode_seconds"] - before["decode_seconds"]) / max(1, steps),
        "prefill_seconds": after["prefill_seconds"] - before["prefill_seconds"],
        "prompt_tokens_computed": after["prompt_tokens_computed"]
        - before["prompt_tokens_computed"],
        "peak_blocks": after["peak_blocks"],
    }


def _synchronize(engine: Engine) -> None:
    if engine.model.device.type == "cuda":
        torch.cuda.synchronize()


class _Copies:
    """Attention that stores the keys and values, and returns the row's own values."""

    fallback = None
    generation = 0

    def __init__(self, engine: Engine) -> None:
        self.layers = engine.model.layers
        self.cache = engine.runner.cache
        if self.cache.device.type == "cuda":
            from sharegen.kernels.store import store
        else:
            from sharegen.kernels.reference import store
        self._store: Callable[..., None] = store

    def update(self, layout: SharedLayout) -> None:
        pass

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: torch.Tensor,
    ) -> AttentionContext:
        return self._context(slots)

    def decode(
        self,
        slots: torch.Tensor,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
    ) -> AttentionContext:
        return self._context(slots)

    def _context(self, slots: torch.Tensor) -> AttentionContext:
        def copy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **how: Any) -> Any:
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        return StoreAndAttend(self.layers, self.cache, slots, self._store, copy)


if __name__ == "__main__":
    for pair in sys.argv[1:]:
        print(json.dumps(decode(*pair.split(":"))))
