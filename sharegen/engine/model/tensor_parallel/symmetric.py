"""Sums over GPUs that read each other's memory: faster than NCCL for what a decoding step sums.

Two ranks each add the other's numbers to their own, where the sum is wanted: a + b and b + a are
the same bits. More of them take torch's two-shot kernel: each rank sums one part of the numbers,
then all fetch the shards, so that every rank gets the same bits, as with NCCL. Ranks wait for each
other in kernels, with no time-out: `let_go` ends the waiting for one that is gone.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

_SIZES = (2, 4, 8)  # ranks that the kernel is made for
_ALIGNMENT = 16  # bytes that a thread of the kernel loads at once
_LONGEST = 10.0  # seconds of letting go

Product = Callable[[torch.Tensor], None]
"""Writes the product of a rank's shard, [rows, out], where it is told."""

_has_met = False
"""Whether this process has met others: torch numbers what they tell each other then by process, so
that one which has would wait for ever for numbers that a new rank does not reach."""


class SymmetricSum(ABC):
    """Memory of all ranks that each can read. Every rank must make one, and ask for each sum.

    largest: bytes of a sum, at most; places: how many sums the memory holds.
    """

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, largest: int, places: int
    ) -> None:
        """Raises RuntimeError where the GPUs cannot share memory."""
        global _has_met
        _has_met = True
        self._device = device
        self._group_name = group.group_name
        self._largest = largest
        self._buffer = symmetric_memory.empty(places * largest, dtype=torch.uint8, device=device)
        self._memory = symmetric_memory.rendezvous(self._buffer, group)
        self._stream = torch.cuda.Stream(device)
        self._waited_for = list(self._signals())
        with torch.cuda.device(device), torch.cuda.stream(self._stream):
            # A first fill is loaded onto the GPU, which waits for what runs there.
            for signal, value in self._waited_for:
                torch.empty_strided(
                    signal.shape, signal.stride(), dtype=signal.dtype, device=device
                ).fill_(value)
            self._stream.synchronize()

    def takes(self, count: int, dtype: torch.dtype) -> bool:
        """Whether the kernel is for so many numbers, which are as many on all ranks."""
        size = count * dtype.itemsize
        return (
            dtype in (torch.bfloat16, torch.float32)
            and 0 < size <= self._largest
            and size % _ALIGNMENT == 0
        )

    def add_up(self, x: torch.Tensor) -> None:
        """Write the sum of all ranks' x over x, which is contiguous."""
        shared = self._place(x.numel(), x.dtype)
        shared.copy_(x.view(-1))
        self._sum(shared, None, x.view(-1))

    def add_up_products(
        self, product: Product, out: torch.Tensor, base: torch.Tensor | None = None
    ) -> None:
        """Write the sum of all ranks' products, each computed where others read it, to `out`.

        out: contiguous; base: of as many numbers, what the sum is added to.
        """
        shared = self._place(out.numel(), out.dtype)
        product(shared.view(out.shape))
        self._sum(shared, None if base is None else base.contiguous().view(-1), out.view(-1))

    @abstractmethod
    def begin(self) -> None:
        """Prepare for the sums of a forward, which are the same ones on all ranks."""
        ...

    @abstractmethod
    def _place(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the place [count] of this rank's numbers of the next sum."""
        ...

    @abstractmethod
    def _sum(self, shared: torch.Tensor, base: torch.Tensor | None, out: torch.Tensor) -> None:
        """Write the sum of all ranks' `shared`, of whom each has filled the place, to `out`.

        base: [count], what the sum is added to.
        """
        ...

    @property
    def is_idle(self) -> bool:
        return bool(torch.cuda.default_stream(self._device).query())

    def let_go(self) -> None:
        """Have this rank's kernels go on that wait for one that is gone; their sums are wrong."""
        end = time.monotonic() + _LONGEST
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            while not self.is_idle and time.monotonic() < end:
                for signal, value in self._waited_for:
                    signal.fill_(value)
                self._stream.synchronize()

    def _signals(self) -> Iterator[tuple[torch.Tensor, int]]:
        """The numbers that this rank's kernels wait for in a barrier, and what frees them.

        Each block of a kernel has one for each pair of ranks: it sets another rank's to 1, before
        which that must be 0, then waits for its own to be 1 and sets it to 0. What a rank has with
        itself it settles by itself, which setting it from outside would stop.
        """
        rank, size = self._memory.rank, self._memory.world_size
        for other in set(range(size)) - {rank}:
            own, theirs = (
                self._memory.get_signal_pad(i, dtype=torch.int32).view(-1, size)
                for i in (rank, other)
            )
            yield theirs[:, rank], 0
            yield own[:, other], 1


class SumOfTwo(SymmetricSum):
    """Each rank waits until the other's numbers are there, and adds these to its own.

    The places take turns: who goes on to the next sum has seen the other one begin it, and so be
    done with the sum before. A forward begins with the first place, after as much waiting.
    """

    LARGEST = 64 * 2**20
    """Bytes, as far as was measured. On two H200, inside a CUDA graph, bfloat16, a copy to the
    place included, with torch's addition in the place of our kernel, and torch's two-shot kernel
    with its copies, and NCCL: 2 MiB 13, 17 and 32 us, 8 MiB 34, 41 and 50, 16 MiB 62, 74 and 81,
    32 MiB 121, 144 and 144, 64 MiB 236, - and 255."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        from sharegen.kernels.peer_sum import add_peers  # a CPU may be without Triton

        super().__init__(group, device, self.LARGEST, places=2)
        self._add = add_peers
        self._turn = 0

    def begin(self) -> None:
        self._memory.barrier()
        self._turn = 0

    def _place(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._turn = 1 - self._turn
        return self._of(self._memory.rank, count, dtype)

    def _sum(self, shared: torch.Tensor, base: torch.Tensor | None, out: torch.Tensor) -> None:
        self._memory.barrier()
        other = self._of(1 - self._memory.rank, shared.numel(), shared.dtype)
        self._add(shared, other, base, out)

    def _of(self, rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """The place whose turn it is, in a rank's memory."""
        start = self._turn * self._largest // dtype.itemsize
        return self._memory.get_buffer(rank, (count,), dtype, start)


class TwoShotSum(SymmetricSum):
    """torch's two-shot kernel, in whose beginning and end all ranks wait for all."""

    LARGEST = 32 * 2**20
    """Bytes, from where on NCCL was as fast on two H200."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(group, device, self.LARGEST, places=1)

    def begin(self) -> None:
        pass

    def _place(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return self._buffer.view(dtype)[:count]

    def _sum(self, shared: torch.Tensor, base: torch.Tensor | None, out: torch.Tensor) -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group_name)
        if base is None:
            out.copy_(shared)
        else:
            torch.add(base, shared, out=out)


def symmetric_sum(group: dist.ProcessGroup, device: torch.device) -> SymmetricSum:
    """What sums fastest for so many ranks. Raises RuntimeError as SymmetricSum does."""
    return (SumOfTwo if group.size() == 2 else TwoShotSum)(group, device)


def shared_memory(devices: list[torch.device], rank: int) -> bool:
    """Whether the GPU of a rank can read the memory of all others, each rank having its own.

    A process shares memory for one engine: ranks of a later one sum by NCCL.
    """
    if _has_met or len(devices) not in _SIZES:
        return False
    if len({device.index for device in devices}) < len(devices):
        return False
    others = [device for i, device in enumerate(devices) if i != rank]
    return all(torch.cuda.can_device_access_peer(devices[rank], other) for other in others)
