"""Host memory for the blocks of samples that were preempted, and the copies there and back.

A slot holds a block with all its layers, so that it crosses the link in one piece. On the device it
is gathered from the layers, and scattered to them, through a small buffer. A step waits for the
gathering alone: the copies across the link run beside it on a stream of their own, and so does the
scattering of what comes back, to blocks that no step reads before all of it is there.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch

from sharegen.engine.core.batch import Int64, Swaps
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.memory import free_memory_of_cpu
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.kernels.transfer import send

_PIECE = 16 << 20  # bytes gathered at a time: a copy so large is worth its launch
_PIECES = 4  # of the buffer: more than so many at once, and a step waits for the link
_CHUNK = 256 << 20  # bytes that are pinned at once: torch rounds each up to a power of two
_TIMED = 8  # blocks of the longer one of two trial copies


def open_swap_space(
    cache: KVCache, num_blocks: int, gib: float, ranks: Ranks | None
) -> SwapSpace | None:
    """Open so many GiB of host memory for the cache's blocks, of which there are `num_blocks`.

    No more than all of them need. Where there is too little memory for it, None, and a warning.
    """
    block = sum(layer.shape[1] * layer.dtype.itemsize for layer in cache.by_block)
    slots = min(int(gib * 2**30) // block, num_blocks)
    free = free_memory_of_cpu() // (1 if ranks is None else ranks.size)
    why = f"a block takes {block / 2**30:.4f} GiB: give it more"
    if slots * block > free:
        slots, why = 0, f"{free / 2**30:.1f} GiB of this machine's memory are free: give it less"
    slots = slots if ranks is None else ranks.least(slots)
    space = None
    try:
        space = SwapSpace(cache, slots) if slots else None
    except RuntimeError as error:
        why = str(error).splitlines()[0]
    if ranks is not None and not ranks.least(space is not None):
        space = None
    if space is None:
        warnings.warn(
            f"swap_space of {gib:g} GiB: preempted samples compute their KV again, for {why:.200}",
            stacklevel=2,
        )
    return space


class SwapSpace:
    """Host memory of `num_slots` slots, pinned beside a GPU, for the blocks of one KV cache.

    Args:
        cache: the KV cache.
        num_slots: how many blocks host memory holds.

    Raises:
        RuntimeError: so much memory cannot be had.
    """

    def __init__(self, cache: KVCache, num_slots: int) -> None:
        self.num_slots = num_slots
        self._device = cache.device
        self._scratch = cache.scratch_block
        self._send = partial(send, cache.device)
        self._layers = cache.by_block
        dtype = self._layers[0].dtype
        ends = np.cumsum([layer.shape[1] for layer in self._layers]).tolist()
        self._columns = [slice(*both) for both in zip([0, *ends[:-1]], ends, strict=True)]
        width, on_gpu = ends[-1], cache.device.type == "cuda"
        self._chunk = max(1, _CHUNK // (width * dtype.itemsize))
        self._host = [
            torch.empty(
                (min(self._chunk, num_slots - first), width), dtype=dtype, pin_memory=on_gpu
            )
            for first in range(0, num_slots, self._chunk)
        ]
        rows = max(1, min(num_slots, _PIECE // (width * dtype.itemsize)))
        pieces = _PIECES if on_gpu else 1
        self._pieces = [torch.empty((rows, width), dtype=dtype, device=self._device)
                        for _ in range(pieces)]  # fmt: skip
        self._turn = 0
        self._link = _Streams(self._device, pieces) if on_gpu else _AtOnce()

    def begin(self, swaps: Swaps | None) -> None:
        """Begin the copies that are asked before a step; those on their way back are awaited."""
        self._link.wait_for_arrivals()
        if swaps is None:
            return
        for blocks, slots in self._in_pieces(swaps.out):
            self._copy_out(blocks, slots)
        for slots, blocks in self._in_pieces(swaps.back):
            self._copy_back(slots, blocks)

    def seconds(self) -> tuple[float, float]:
        """Seconds for blocks to go out and come back: the fixed part, and what each block adds."""
        many = min(_TIMED, self.num_slots)
        self._trial(many)  # touches the pages
        of_one, of_many = self._trial(1), self._trial(many)
        a_block = (of_many - of_one) / (many - 1) if many > 1 else of_one
        return max(0.0, of_one - a_block), max(0.0, a_block)

    def _trial(self, count: int) -> float:
        """Seconds of the scratch block going out and back so many times; it stays as it is."""
        block, slots = np.full(count, self._scratch, np.int64), np.arange(count, dtype=np.int64)
        swaps = Swaps(np.stack([block, slots], 1), np.stack([slots, block], 1))
        self.finish()
        begin = time.perf_counter()
        self.begin(swaps)
        self.finish()
        return time.perf_counter() - begin

    def finish(self) -> None:
        """Wait until all copies are done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _in_pieces(self, pairs: Int64) -> Iterator[tuple[Int64, Int64]]:
        """Yield the sources and targets of as many pairs at a time as the buffer's next piece
        holds.
        """
        size = len(self._pieces[0])
        for first in range(0, len(pairs), size):
            self._turn = (self._turn + 1) % len(self._pieces)
            source, target = np.ascontiguousarray(pairs[first : first + size].T)
            yield source, target

    def _copy_out(self, blocks: Int64, slots: Int64) -> None:
        piece = self._pieces[self._turn][: len(blocks)]
        [index] = self._send(blocks)
        self._link.wait_for_piece(self._turn)
        for layer, columns in zip(self._layers, self._columns, strict=True):
            piece[:, columns] = layer.index_select(0, index)
        with self._link.beside_steps(self._turn):
            for row, slot in zip(piece, slots.tolist(), strict=True):
                self._slot(slot).copy_(row, non_blocking=True)

    def _copy_back(self, slots: Int64, blocks: Int64) -> None:
        piece = self._pieces[self._turn][: len(slots)]
        with self._link.beside_steps(self._turn, arrives=True):
            for row, slot in zip(piece, slots.tolist(), strict=True):
                row.copy_(self._slot(slot), non_blocking=True)
            [index] = self._send(blocks)
            for layer, columns in zip(self._layers, self._columns, strict=True):
                layer.index_copy_(0, index, piece[:, columns])

    def _slot(self, slot: int) -> torch.Tensor:
        return self._host[slot // self._chunk][slot % self._chunk]


class _AtOnce:
    """A device where every copy is done when it returns."""

    def wait_for_arrivals(self) -> None:
        pass

    def wait_for_piece(self, piece: int) -> None:
        pass

    def beside_steps(self, piece: int, arrives: bool = False) -> AbstractContextManager[None]:
        return nullcontext()


class _Streams:
    """A GPU's: copies across the link go one after the other, on a stream beside the steps'.

    So a slot is read before it is written again, and a piece of the buffer likewise.
    """

    def __init__(self, device: torch.device, pieces: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._crossed = [torch.cuda.Event() for _ in range(pieces)]
        self._arrived: torch.cuda.Event | None = None

    def wait_for_arrivals(self) -> None:
        """The steps' stream goes on when all that was on its way to the device is there."""
        if self._arrived is not None:
            torch.cuda.current_stream(self._device).wait_event(self._arrived)
            self._arrived = None

    def wait_for_piece(self, piece: int) -> None:
        """The steps' stream goes on when what was in a piece of the buffer is elsewhere."""
        torch.cuda.current_stream(self._device).wait_event(self._crossed[piece])

    @contextmanager
    def beside_steps(self, piece: int, arrives: bool = False) -> Iterator[None]:
        """Work behind all that the steps' stream has so far, and beside what it gets later.

        piece: of the buffer, which it uses; arrives: whether later steps wait for it.
        """
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield
            self._crossed[piece].record(self._stream)
            if arrives:
                self._arrived = torch.cuda.Event()
                self._arrived.record(self._stream)
