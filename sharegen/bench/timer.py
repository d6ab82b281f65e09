"""How long a function takes: on a GPU as a captured graph, on a CPU as it is."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

_FLUSH_BYTES = 256 << 20  # several times the L2 cache
_REST = 0.3  # seconds
_WARM_UP = 5  # replays


class Timer:
    """Median microseconds of a function's CUDA graph, with a cold L2 cache before each replay.

    The card rests before each measurement, for its clocks depend on what ran before.
    """

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)

    def __call__(self, function: Callable[[], object], repeats: int = 15) -> float:
        return float(np.median(self.times(function, repeats)))

    def times(self, function: Callable[[], object], repeats: int) -> list[float]:
        """Return the microseconds of each replay."""
        function()
        torch.cuda.synchronize()
        time.sleep(_REST)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        times = []
        for i in range(repeats + _WARM_UP):
            self._flush.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i >= _WARM_UP:
                times.append(start.elapsed_time(end) * 1e3)
        return times


class CpuTimer:
    """Median microseconds of a function as it runs on a CPU, whose caches stay as they are."""

    def __call__(self, function: Callable[[], object], repeats: int = 15) -> float:
        return float(np.median(self.times(function, repeats)))

    def times(self, function: Callable[[], object], repeats: int) -> list[float]:
        """Microseconds of each call, after one that does not count."""
        function()
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            function()
            times.append((time.perf_counter() - started) * 1e6)
        return times


def timer_of(device: torch.device) -> Timer | CpuTimer:
    """Return what measures a function on a device."""
    return Timer(device) if device.type == "cuda" else CpuTimer()
