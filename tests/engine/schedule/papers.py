"""A scheduler with nobody behind it: samples of given lengths, and no tokens worth the name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import PrefillStep


@dataclass(frozen=True)
class Counted:
    """steps: of decoding. replayed: tokens that were fed again after a preemption."""

    steps: int
    preemptions: int
    replayed: int
    tokens: int


def drawn(length: Callable[[random.Random], float], count: int, seed: int = 0) -> list[int]:
    """Lengths of samples, at least 1."""
    rng = random.Random(seed)
    return [max(1, int(length(rng))) for _ in range(count)]


def count(
    lengths: Sequence[int],
    limit: int,
    *,
    blocks: int,
    block_size: int = 16,
    rows: int = 256,
    known: Lengths | None = None,
) -> Counted:
    """Run requests of one sample each, the i-th of which ends with lengths[i] tokens."""
    scheduler = Scheduler(
        BlockPool(blocks, block_size),
        max_sequences=rows,
        context_length=1 << 20,
        chunk_tokens=2048,
        ahead_tokens=0,
        padded=lambda rows: rows,
        scratch_block=blocks,
    )
    if known is not None:
        scheduler.admission.lengths.learn(known)
    params = SamplingParams(max_tokens=limit)
    scheduler.add_requests([Request(i, [i] * 12, params, range(1)) for i in range(len(lengths))])
    steps = replayed = 0
    while scheduler.has_work:
        step = scheduler.schedule(is_idle=True)
        assert step is not None
        if isinstance(step, PrefillStep):
            grown = [s for group in step.groups for s in scheduler.draw(group, [0], [0.0])]
        else:
            steps += 1
            rows = scheduler.rows
            rows.landed(step)
            live = [(s, i) for s, i in zip(rows.sequences, step.index, strict=True) if s]
            grown = [s for s, i in live if i == s.num_tokens]
            replayed += len(live) - len(grown)
            for sequence in grown:
                sequence.add(0, 0.0)
        for sequence in grown:
            if sequence.num_tokens == min(lengths[sequence.group.request.key], limit):
                scheduler.finish(sequence)
    scheduler.check_integrity()
    return Counted(
        steps, scheduler.preemption.preempted, replayed, sum(min(n, limit) for n in lengths)
    )
