"""Where the time of a job goes: prefill and decoding on a GPU, and the parts of a decoding step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from sharegen.bench.parts import PARTS, part_of
from sharegen.engine.core.batch import DecodeBatch
from sharegen.engine.engine import Engine
from sharegen.engine.execute.drawn import Drawn

_STEADY, _SETTLING, _PROFILED = 8, 6, 24  # full steps: before the profiler, before it counts, then
_NEEDED = _STEADY + _SETTLING + _PROFILED

Span = tuple[float, float]


class PhaseClock:
    """Adds up the GPU's time in prefill and in decoding inside the `with` block."""

    def __init__(self, engine: Engine) -> None:
        self.runner = engine.runner
        self._events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {
            "prefill": [], "decode": [],
        }  # fmt: skip

    def __enter__(self) -> PhaseClock:
        for phase in self._events:
            setattr(self.runner, phase, self._timed(phase))
        return self

    def __exit__(self, *error: object) -> None:
        del self.runner.prefill, self.runner.decode

    def seconds(self) -> dict[str, float]:
        torch.cuda.synchronize(self.runner.device)
        return {
            f"{phase}_seconds": sum(start.elapsed_time(end) for start, end in pairs) / 1e3
            for phase, pairs in self._events.items()
        }

    def _timed(self, phase: str) -> Callable[[Any], Drawn]:
        run = getattr(self.runner, phase)

        def timed(batch: Any) -> Drawn:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            drawn: Drawn = run(batch)
            end.record()
            self._events[phase].append((start, end))
            return drawn

        return timed


class StepProfile:
    """Profiles some full decoding steps of the job that runs inside the `with` block.

    rows: sequences of a full step, as many as the job decodes together.
    """

    def __init__(self, engine: Engine, rows: int) -> None:
        self.runner = engine.runner
        self.rows = rows
        self._decode: Callable[[DecodeBatch], Drawn] = self.runner.decode
        self._steps = 0
        self._on_gpu = self.runner.device.type == "cuda"
        self._seconds = 0.0  # on a CPU, of the steps that were profiled
        kind = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[kind], acc_events=True)

    def __enter__(self) -> StepProfile:
        setattr(self.runner, "decode", self._watched)  # noqa: B010 (a method, for a while)
        return self

    def __exit__(self, *error: object) -> None:
        del self.runner.decode
        if _STEADY < self._steps < _NEEDED:  # it was started, and not stopped
            self._profiler.stop()

    def _watched(self, batch: DecodeBatch) -> Drawn:
        full = batch.num_rows >= self.rows  # more of them where they end early
        if full and self._steps == _STEADY:
            self._profiler.start()
            self._begun = time.perf_counter()
        drawn = self._decode(batch)
        if full:
            self._steps += 1
            if self._steps == _NEEDED:
                if self._on_gpu:
                    torch.cuda.synchronize(self.runner.device)
                self._seconds = time.perf_counter() - self._begun
                self._profiler.stop()
        return drawn

    def milliseconds(self) -> dict[str, float]:
        """Return the milliseconds of a step by part, `idle` and the whole step.

        shared and suffix run side by side, so the parts may be more than the whole. ranks: what
        several of them pass on, waiting for each other included. idle: what the GPU waits for the
        host; on a CPU all that is no operator. Empty, with the reason on stderr, where too few
        steps were seen.
        """
        if self._steps < _NEEDED:
            return _nothing(f"{self._steps} had all {self.rows:,} rows, and it takes {_NEEDED}")
        if not self._on_gpu:
            operators = self._profiler.key_averages()
            times = [(each.key, each.self_cpu_time_total) for each in operators]
            return of_operators(times, self._seconds * 1e6, _NEEDED - _STEADY)
        events: Iterable[Any] = self._profiler.events() or ()
        kernels = sorted(
            (event.time_range.start, event.time_range.end, event.name)
            for event in events
            if event.device_type == DeviceType.CUDA
        )
        return by_part(kernels, _PROFILED) or _nothing(f"the trace has no {_PROFILED} of them")


def _nothing(why: str) -> dict[str, float]:
    """Return no times, and print the reason."""
    print(f"the parts of a full step were not timed: {why}", file=sys.stderr)
    return {}


def by_part(kernels: list[tuple[float, float, str]], steps: int) -> dict[str, float] | None:
    """The kernels of the last `steps` steps in a trace: (start, end, name), microseconds, in order.

    A step ends with its last kernel of sampling.
    """
    ends = [end for _, end, name in kernels if "_pick_kernel" in name]
    if len(ends) <= steps:
        return None
    begin, finish = ends[-steps - 1], ends[-1]
    inside = [kernel for kernel in kernels if begin <= kernel[0] < finish]
    times = dict.fromkeys(PARTS, 0.0)
    for start, end, name in inside:
        times[part_of(name)] += end - start
    busy = _union([(start, min(end, finish)) for start, end, _ in inside])
    times |= {"idle": finish - begin - busy, "step": finish - begin}
    return {f"{part}_ms": time / steps / 1e3 for part, time in times.items()}


def of_operators(
    operators: Iterable[tuple[str, float]], whole: float, steps: int
) -> dict[str, float]:
    """The parts of a step on a CPU: operators' own microseconds in `steps` steps of `whole`."""
    times = dict.fromkeys(PARTS, 0.0)
    for name, own in operators:
        times[part_of(name)] += own
    times |= {"idle": max(0.0, whole - sum(times.values())), "step": whole}
    return {f"{part}_ms": time / steps / 1e3 for part, time in times.items()}


def _union(spans: list[Span]) -> float:
    """How long at least one of the spans, which are in order of their starts, lasts."""
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
