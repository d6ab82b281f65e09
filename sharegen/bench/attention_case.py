"""One layer of decode attention as a measurement: a two-level tree with random keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.narrow import NarrowKV, exponent_bytes
from sharegen.kernels.plan import Plan
from sharegen.kernels.reference import read_narrow, store_narrow
from sharegen.kernels.tiles import AttentionShape

BANDWIDTH = 4.2e12  # bytes a second that a copy reaches on the card of the table
MATRIX_RATE = 790e12  # operations a second that a matrix product in bf16 reaches there
_FLUSH_BYTES = 256 << 20  # several times the L2 cache
_REST = 0.3  # seconds
_WARM_UP = 5  # replays
_STORED_AT_ONCE = 4096  # blocks


@dataclass(frozen=True)
class Case:
    """few-shot tokens -> problems of some tokens -> samples with a suffix of some tokens.

    aim: microseconds that one layer should take on an H200, None outside the table. narrow: whether
    suffixes are FP8 with their scales.
    """

    num_heads: int
    num_kv_heads: int
    few: int
    problem: int
    problems: int
    samples: int
    suffix: int
    aim: float | None = None
    head_size: int = 128
    narrow: bool = False

    @property
    def rows(self) -> int:
        return self.problems * self.samples

    @property
    def kv_bytes(self) -> int:
        """Bytes of all keys and values, each counted once."""
        shared, own = self.few + self.problem * self.problems, self.suffix * self.rows
        wide, narrow = 2 * 2 * self.head_size, 2 * self.head_size + exponent_bytes(1)
        return self.num_kv_heads * (shared * wide + own * (narrow if self.narrow else wide))

    @property
    def operations(self) -> int:
        """Multiplications and additions of both matrix products over the rows' whole contexts."""
        context = self.few + self.problem + self.suffix
        return 4 * self.rows * self.num_heads * self.head_size * context

    @property
    def floor(self) -> float:
        """Microseconds below which no kernel can be on the card of the table."""
        return 1e6 * max(self.kv_bytes / BANDWIDTH, self.operations / MATRIX_RATE)

    def __str__(self) -> str:
        problem = self.problem or "-"
        return (
            f"{self.num_heads}/{self.num_kv_heads} {self.few}/{problem} "
            f"{self.problems}x{self.samples} +{self.suffix}{' fp8' if self.narrow else ''}"
        )


TABLE = (
    Case(32, 8, 1024, 112, 26, 40, 128, aim=170),
    Case(32, 32, 1024, 112, 26, 40, 128, aim=570),
    Case(32, 8, 1024, 96, 32, 32, 64, aim=110),
    Case(32, 8, 8192, 64, 32, 32, 64, aim=330),
    Case(32, 32, 2400, 512, 8, 128, 64, aim=390),
    Case(8, 1, 16384, 0, 1, 1024, 128, aim=190),
    Case(8, 1, 16384, 0, 1, 4096, 128, aim=560),
    Case(32, 32, 1024, 0, 1, 32, 64, aim=35),
    Case(32, 32, 4096, 0, 1, 32, 64, aim=50),
)

NARROW = tuple(replace(TABLE[i], aim=None, narrow=True) for i in (0, 1, 3, 4, 5, 6))
"""Those of the table in which samples' own tokens count, with these in FP8."""


class Tensors:
    """The tensors of a case: the shared nodes at the caches' low end, the suffixes mixed."""

    def __init__(
        self,
        case: Case,
        device: torch.device,
        block_size: int = 16,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.case = case
        self.shape = AttentionShape(
            case.num_heads, case.num_kv_heads, case.head_size, case.head_size, block_size, dtype
        )
        self.layout, self.context = _layout(case, block_size)
        rng = np.random.default_rng(0)
        low, per_row = len(self.layout.blocks), max(1, -(-case.suffix // block_size))
        table = low + rng.permutation(case.rows * per_row).astype(np.int32)
        size = (low + case.rows * per_row, block_size, case.num_kv_heads, case.head_size)
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(
                shape, generator=generator, dtype=self.shape.dtype, device=device
            )  # fmt: skip

        self.k_cache, self.v_cache = random(*size), random(*size)
        self.q = random(case.rows, case.num_heads, case.head_size)
        self.block_tables = torch.from_numpy(table.reshape(case.rows, per_row)).to(device)
        prefix = case.few + case.problem
        self.prefix_length = torch.full((case.rows,), prefix, dtype=torch.int32, device=device)
        self.position = self.prefix_length + (case.suffix - 1)
        self.scale = case.head_size**-0.5
        self.out = torch.empty_like(self.q)
        self.narrow = self._suffixes_narrow() if case.narrow else None

    def _suffixes_narrow(self) -> NarrowKV:
        """The suffixes as narrow blocks of the same numbers; their caches hold what can be read."""
        blocks, size, heads, width = self.k_cache.shape

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.uint8, device=self.q.device)

        keys, values = (zeros(blocks, size, heads, width) for _ in range(2))
        found = NarrowKV(
            keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn),
            zeros(blocks, heads, 2, size),
        )  # fmt: skip
        offsets = torch.arange(size, device=self.q.device)
        for table in self.block_tables.flatten().long().split(_STORED_AT_ONCE):
            slots = (table[:, None] * size + offsets).flatten()
            k, v = (cache.flatten(0, 1)[slots] for cache in (self.k_cache, self.v_cache))
            store_narrow(k, v, found, slots)
            for cache, numbers in zip(
                (self.k_cache, self.v_cache), read_narrow(found, slots), strict=True
            ):
                cache.flatten(0, 1)[slots] = numbers.to(cache.dtype)
        return found

    def inputs(self, plan: Plan) -> tuple:
        """The positional arguments of `decode_attention`."""
        return (
            self.q, self.k_cache, self.v_cache, plan,
            self.block_tables, self.prefix_length, self.position,
        )  # fmt: skip

    def error(self, rows: int = 8) -> float:
        """The largest error of `out`, on some rows, against float32 over their whole contexts."""
        size = self.shape.block_size
        keys, values = self.k_cache.flatten(0, 1), self.v_cache.flatten(0, 1)
        worst = 0.0
        for row in range(0, self.case.rows, max(1, self.case.rows // rows)):
            own = self.block_tables[row, :, None] * size + torch.arange(size, device=keys.device)
            shared = torch.from_numpy(self.context[row]).to(keys.device)
            slots = torch.cat([shared, own.flatten()[: self.case.suffix]])
            k = keys[slots].float().repeat_interleave(self.shape.group, 1)
            v = values[slots].float().repeat_interleave(self.shape.group, 1)
            s = torch.einsum("hd,thd->ht", self.q[row].float(), k) * self.scale
            expected = torch.einsum("ht,thd->hd", torch.softmax(s, 1), v)
            difference = (self.out[row].float() - expected).abs().max().item()
            worst = max(worst, difference if difference == difference else float("inf"))
        return worst


def _layout(case: Case, block_size: int) -> tuple[SharedLayout, list[np.ndarray]]:
    """The layout, rows in mixed order, and the slots of each row's shared tokens."""
    lengths, firsts, ends, positions = [], [], [], []
    if case.few:
        lengths, firsts, ends, positions = [case.few], [0], [case.rows], [0]
    if case.problem:
        for i in range(case.problems):
            lengths.append(case.problem)
            firsts.append(i * case.samples)
            ends.append((i + 1) * case.samples)
            positions.append(case.few)
    starts = np.cumsum([0, *(-(-length // block_size) for length in lengths)]).astype(np.int32)
    order = np.random.default_rng(1).permutation(case.rows).astype(np.int32)
    context: list[np.ndarray] = [np.zeros(0, np.int64)] * case.rows
    for i, length in enumerate(lengths):
        slots = np.arange(length) + int(starts[i]) * block_size
        for row in order[firsts[i] : ends[i]]:
            context[row] = np.concatenate([context[row], slots])
    layout = SharedLayout(
        order=order,
        length=np.array(lengths, np.int32),
        position=np.array(positions, np.int32),
        level=(np.array(positions, np.int32) > 0).astype(np.int32),
        row_start=np.array(firsts, np.int32),
        row_end=np.array(ends, np.int32),
        block_start=starts,
        blocks=np.arange(starts[-1], dtype=np.int32),
        contiguous=np.ones(len(lengths), bool),
        narrow=np.zeros(len(lengths), bool),
    )
    return layout, context


class Timer:
    """Median microseconds of a function's CUDA graph, with a cold L2 cache before each replay.

    The card rests before each measurement, for its clocks hang on what ran before.
    """

    def __init__(self, device: torch.device) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device)

    def __call__(self, function: Callable[[], object], repeats: int = 15) -> float:
        return float(np.median(self.times(function, repeats)))

    def times(self, function: Callable[[], object], repeats: int) -> list[float]:
        """Microseconds of each replay."""
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
    """The same of a function as it runs on a CPU, whose caches stay as they are."""

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
    """What measures a function on a device."""
    return Timer(device) if device.type == "cuda" else CpuTimer()
