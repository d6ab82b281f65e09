"""Sums over GPUs that read each other's memory: faster than NCCL for what a decoding step sums.

torch's two-shot kernel: each rank sums one part of the numbers, then all fetch the parts. So every
rank gets the same bits, as with NCCL. Its ranks wait for each other inside the kernel, with no
time-out: `let_go` ends the waiting for one that is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

LARGEST = 32 * 2**20
"""Bytes of a sum up to which the kernel is taken. On two H200, inside a CUDA graph, bfloat16, its
copies included, and NCCL: 2 MiB 17 and 44 us, 8 MiB 41 and 61, 16 MiB 73 and 89, 32 MiB 144 and
157, 64 MiB 280 and 261."""

_SIZES = (2, 4, 8)  # ranks that the kernel is made for
_ALIGNMENT = 16  # bytes that a thread of the kernel loads at once
_LONGEST = 10.0  # seconds of letting go

_has_met = False
"""Whether this process has met others: torch numbers what they tell each other then by process, so
that one which has would wait for ever for numbers that a new rank does not reach."""


class SymmetricSum:
    """Memory of all ranks that each can read. Every rank must make one, and ask for each sum."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Raises RuntimeError where the GPUs cannot share memory."""
        global _has_met
        _has_met = True
        self._device = device
        self._group_name = group.group_name
        self._buffer = symmetric_memory.empty(LARGEST, dtype=torch.uint8, device=device)
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
            and 0 < size <= LARGEST
            and size % _ALIGNMENT == 0
        )

    def add_up(self, x: torch.Tensor) -> None:
        """Write the sum of all ranks' x over x, which is contiguous."""
        shared = self._buffer.view(x.dtype)[: x.numel()]
        shared.copy_(x.view(-1))
        self._reduce(shared)
        x.view(-1).copy_(shared)

    def add_up_products(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x @ weight.T, which is computed where it is summed.

        x: [rows, in]; weight: [out, in] -> [rows, out]
        """
        rows, out = x.shape[0], weight.shape[0]
        shared = self._buffer.view(x.dtype)[: rows * out]
        torch.mm(x, weight.t(), out=shared.view(rows, out))
        self._reduce(shared)
        return shared.view(rows, out).clone()

    def _reduce(self, shared: torch.Tensor) -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group_name)

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
