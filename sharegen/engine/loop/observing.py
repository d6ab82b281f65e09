"""What an engine counts: its stats, kept with every step and read off the books of its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sharegen.engine.config import EngineStats
from sharegen.engine.execute.runner import Runner
from sharegen.engine.model.states.mixers import kernels_of
from sharegen.engine.prepared import Prepared
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.step import DecodeStep, PrefillStep, Step
from sharegen.engine.schedule.usage import CacheUsage, Meter


class Observer:
    """Keeps the stats of one engine, from one start to the next.

    slow: why there are no kernels for the model's attention, where there are none. place_bytes: of
    a token's place in the KV cache. meter: of what is in use of that, step by step.
    """

    def __init__(self, prepared: Prepared, scheduler: Scheduler, slow: str | None) -> None:
        self.stats = EngineStats(
            blocks_total=prepared.num_blocks, slots=prepared.max_sequences, slow_attention=slow,
            states_total=prepared.num_slots or 0,
            mixers=kernels_of(prepared.model.mixers, prepared.model.device),
            device=prepared.model.device.type, engines=1,
        )  # fmt: skip
        self.meter = Meter()
        self.place_bytes = prepared.place_bytes
        self._scheduler = scheduler

    def launched(self, step: Step, runner: Runner) -> None:
        """A step runs, and has filled the places that it writes to."""
        stats = self.stats
        if isinstance(step, PrefillStep):
            stats.prefill_steps += 1
        else:
            stats.decode_steps += 1
            levels = " ".join(map(str, runner.shared_levels))
            steps = stats.steps_by_levels
            steps[levels] = steps.get(levels, 0) + 1
        stats.slow_steps += stats.slow_attention is not None
        usage = CacheUsage.of(self._scheduler.cache, self._scheduler.rows)
        self.meter.note(usage, decodes=isinstance(step, DecodeStep))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The host waits for the device meanwhile."""
        started = time.perf_counter()
        yield
        self.stats.waited_seconds += time.perf_counter() - started

    def took(self, step: Step | None, seconds: float) -> None:
        """Note how long the host has been busy with a step, or with collecting where there was
        none.
        """
        if isinstance(step, PrefillStep):
            self.stats.prefill_seconds += seconds
        else:
            self.stats.decode_seconds += seconds
        self.read()
        self._weigh_swaps()

    def _weigh_swaps(self) -> None:
        """See what a token costs that is computed again.

        What the ranks do depends on the times of rank 0 alone, which tells them their batches.
        """
        swapping, stats = self._scheduler.swapping, self.stats
        seconds, tokens = stats.decode_seconds, self._scheduler.row_steps
        if swapping.one_pass and not self._scheduler.fills_rows:
            seconds = stats.prefill_seconds
            tokens = stats.prompt_tokens_computed + swapping.tokens_filled
        swapping.seconds_a_token = seconds / max(1, tokens)

    def read(self) -> None:
        """Read the books as they are now."""
        stats, scheduler = self.stats, self._scheduler
        stats.prompt_tokens_computed = scheduler.cache.tokens_computed
        stats.prompt_tokens_recomputed = scheduler.cache.tokens_recomputed
        stats.prompt_tokens_found = scheduler.cache.tokens_found
        stats.preemptions = scheduler.preemption.preempted
        stats.swaps = scheduler.swapping.swaps
        stats.tokens_replayed = scheduler.preemption.tokens_replayed
        stats.cancelled = scheduler.cancelled
        stats.cancelled_tokens = scheduler.cancelled_tokens
        stats.running = scheduler.num_running
        stats.waiting = scheduler.prefill.num_waiting + len(scheduler.ready)
        stats.blocks_used = scheduler.pool.num_used - scheduler.cache.idle_blocks
        stats.peak_blocks = scheduler.pool.peak_used
        stats.peak_kv = self.meter.peak.counts(self.place_bytes)
        stats.kv_in_steps = self.meter.in_steps
        stats.peak_states = scheduler.states.peak_used
