"""What the host does in a decoding step, without a model and without a GPU.

    python -m benchmarks host

Separate prompts fill all rows, and each request has many stop token ids. In every step one row ends
and leaves, so that the layout of the batch changes each time. A stand-in for the device draws.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.config import EngineStats
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.padding import graph_rows
from sharegen.engine.loop.collecting import Collector
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import PrefillStep, Step
from sharegen.engine.schedule.usage import CacheUsage, Meter

PROMPTS, PROMPT_TOKENS, ROWS, ENDS, STEPS = 1030, 4096, 1024, 1001, 200
_VOCABULARY, _BLOCK_SIZE, _CHUNK = 32_000, 16, 8192


@dataclass
class Times:
    """Milliseconds a step: to schedule it, to collect what it drew, and both."""

    schedule: list[float] = field(default_factory=list)
    collect: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        both = np.add(self.schedule, self.collect)
        found = {"schedule": self.schedule, "collect": self.collect, "step": both}
        return {f"{name}_ms": round(float(np.median(ms)), 3) for name, ms in found.items()}


def bench_host() -> dict[str, float]:
    """Run the job's prefill, then STEPS full steps; the median of their times."""
    rng = np.random.default_rng(0)
    params = SamplingParams(max_tokens=STEPS + 64, stop_token_ids=list(range(ENDS)))
    prompts = rng.integers(ENDS, _VOCABULARY, (PROMPTS, PROMPT_TOKENS), dtype=np.int32)
    blocks = (PROMPT_TOKENS + STEPS + 64) // _BLOCK_SIZE + 2
    scheduler = Scheduler(
        BlockPool(PROMPTS * blocks, _BLOCK_SIZE), max_sequences=ROWS, context_length=1 << 20,
        chunk_tokens=_CHUNK, ahead_tokens=0, padded=graph_rows, scratch_block=PROMPTS * blocks,
    )  # fmt: skip
    collector = Collector(scheduler, EngineStats(), None, ())
    requests = [Request(i, prompt, params, range(1)) for i, prompt in enumerate(prompts)]
    scheduler.add_requests(requests)

    def drawn(step: Step, ends: int | None) -> Drawn:
        count = len(step.batch.drawings) if isinstance(step, PrefillStep) else step.batch.num_rows
        tokens = torch.from_numpy(rng.integers(ENDS, _VOCABULARY, count))
        ended = torch.zeros(count, dtype=torch.bool)
        if ends is not None and ends < count:
            tokens[ends], ended[ends] = 7, True
        return Drawn(tokens, torch.zeros(count), ended)

    times, meter = Times(), Meter()
    while len(times.collect) < STEPS:
        started = time.perf_counter()
        step = scheduler.schedule(is_idle=True)
        assert step is not None
        steady = not isinstance(step, PrefillStep)
        meter.note(CacheUsage.of(scheduler.cache, scheduler.rows), decodes=steady)
        scheduled = time.perf_counter()
        result = drawn(step, len(times.collect) if steady else None)
        ready = time.perf_counter()
        collector.collect(step, result)
        if steady:
            times.schedule.append(1e3 * (scheduled - started))
            times.collect.append(1e3 * (time.perf_counter() - ready))
    return times.summary()
