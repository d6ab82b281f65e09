"""When a step finds no memory: it is taken back, and the ones after it are smaller.

Nothing is lost by it. Prompts whose chunks did not run wait again, in their place; sequences whose
step did not run are preempted and replay the tokens that they have. What was drawn stays.
"""

from __future__ import annotations

from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import PrefillStep, Step

LEAST_CHUNK = 256
LEAST_SEQUENCES = 8
"""Tokens of a prefill batch and sequences decoded together: below that a job would hardly move."""


def shrink(scheduler: Scheduler, step: Step) -> str | None:
    """Take back a step that did not run, and make those to come smaller.

    Returns what is smaller from now on, or None where nothing can be.
    """
    if isinstance(step, PrefillStep):
        scheduler.take_back(step)
        if scheduler.chunk_tokens > LEAST_CHUNK:
            scheduler.chunk_tokens = max(LEAST_CHUNK, scheduler.chunk_tokens // 2)
            return f"prompts are computed {scheduler.chunk_tokens:,} tokens at a time"
    # Fewer sequences leave more to prefill, too: the graphs of wide batches hold memory.
    scheduler.preempt_all()
    if scheduler.max_sequences > LEAST_SEQUENCES:
        scheduler.max_sequences = max(LEAST_SEQUENCES, scheduler.max_sequences // 2)
        return f"{scheduler.max_sequences:,} sequences decode together"
    return None
