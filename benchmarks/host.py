"""What the host does in a decoding step, without a model and without a GPU.

    python -m benchmarks host --rows 4096 --samples 1024 --ends 32 --stop Question:

Requests fill all rows, and each has many stop token ids; stop strings are looked for in the text of
the bundled tokenizer. In every step some rows end and leave, so
that the layout of the batch changes each time. A stand-in for the device draws. Times are those of
this thread's processor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.config import EngineStats
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.padding import graph_rows
from sharegen.engine.loop.collecting import Collector
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import PrefillStep, Step
from sharegen.engine.schedule.usage import CacheUsage, Meter
from sharegen.workload.recipe import RECIPES

PROMPT_TOKENS, END_TOKENS, STEPS = 4096, 1001, 200
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


def bench_host(rows: int, samples: int, ends: int, stop: Sequence[str] = ()) -> dict[str, float]:
    """Run the job's prefill, then STEPS full steps; the median of their times.

    samples: of each prompt. ends: rows that end in every step. stop: strings that end a sample.
    """
    rng = np.random.default_rng(0)
    params = SamplingParams(
        max_tokens=STEPS + 64, stop_token_ids=list(range(END_TOKENS)), stop=stop
    )
    count = -(-(rows + (STEPS + 1) * ends) // samples)
    prompts = rng.integers(3, END_TOKENS, (count, PROMPT_TOKENS), dtype=np.int32)
    own = (STEPS + 64) // _BLOCK_SIZE + 2
    blocks = count * (PROMPT_TOKENS // _BLOCK_SIZE + 1) + count * samples * own
    scheduler = Scheduler(
        BlockPool(blocks, _BLOCK_SIZE), max_sequences=rows, context_length=1 << 20,
        chunk_tokens=_CHUNK, ahead_tokens=0, padded=graph_rows, scratch_block=blocks,
    )  # fmt: skip
    tokenizer = load_tokenizer(RECIPES / "tinymath" / "model") if stop else None
    collector = Collector(scheduler, EngineStats(), tokenizer, ())
    asked = range(samples)
    requests = [Request(i, prompt, params, asked) for i, prompt in enumerate(prompts)]
    scheduler.add_requests(requests)

    def drawn(step: Step, first: int | None) -> Drawn:
        places = len(step.batch.drawings) if isinstance(step, PrefillStep) else step.batch.num_rows
        tokens = torch.from_numpy(rng.integers(END_TOKENS, _VOCABULARY, places))
        ended = torch.zeros(places, dtype=torch.bool)
        if first is not None:
            which = [(first * ends + place) % places for place in range(ends)]
            tokens[which], ended[which] = 7, True
        return Drawn(tokens, torch.zeros(places), ended)

    times, meter = Times(), Meter()
    while len(times.collect) < STEPS:
        started = time.thread_time()
        step = scheduler.schedule(is_idle=True)
        assert step is not None
        steady = not isinstance(step, PrefillStep)
        meter.note(CacheUsage.of(scheduler.cache, scheduler.rows), decodes=steady)
        scheduled = time.thread_time()
        result = drawn(step, len(times.collect) if steady else None)
        ready = time.thread_time()
        collector.collect(step, result)
        if steady:
            times.schedule.append(1e3 * (scheduled - started))
            times.collect.append(1e3 * (time.thread_time() - ready))
    return times.summary()
