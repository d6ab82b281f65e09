"""Sums over GPUs that read each other's memory: faster than NCCL for what a decoding step sums.

torch's two-shot kernel: each rank sums one part of the numbers, then all fetch the parts. So every
rank gets the same bits, as with NCCL. Its ranks wait for each other inside the kernel, with no
time-out: `let_go` ends the waiting for one that is gone.
"""

from __future__ import annotations

import time

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


class SymmetricSum:
    """Memory of all ranks that each can read. Every rank must make one, and ask for each sum."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Raises RuntimeError where the GPUs cannot share memory."""
        self._device = device
        self._group_name = group.group_name
        self._buffer = symmetric_memory.empty(LARGEST, dtype=torch.uint8, device=device)
        self._memory = symmetric_memory.rendezvous(self._buffer, group)

    def takes(self, x: torch.Tensor) -> bool:
        """Whether the kernel is for x: by its type and size, which are the same on all ranks."""
        size = x.numel() * x.element_size()
        return (
            x.dtype in (torch.bfloat16, torch.float32)
            and 0 < size <= LARGEST
            and size % _ALIGNMENT == 0
        )

    def add_up(self, x: torch.Tensor) -> None:
        """Write the sum of all ranks' x over x, which is contiguous."""
        shared = self._buffer.view(x.dtype)[: x.numel()]
        shared.copy_(x.view(-1))
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", self._group_name)
        x.view(-1).copy_(shared)

    def let_go(self) -> None:
        """Have this rank's kernels go on that wait for a rank that is gone; their sums are wrong.

        A kernel waits until its own signal is 1, and before it sets another's until that is 0.
        """
        rank, size = self._memory.rank, self._memory.world_size
        signals = [self._memory.get_signal_pad(i, dtype=torch.int32) for i in range(size)]
        end = time.monotonic() + _LONGEST
        with torch.cuda.device(self._device), torch.cuda.stream(torch.cuda.Stream()):
            while not torch.cuda.default_stream().query() and time.monotonic() < end:
                for i, signal in enumerate(signals):
                    signal.fill_(1 if i == rank else 0)
                torch.cuda.current_stream().synchronize()


def shared_memory(devices: list[torch.device], rank: int) -> bool:
    """Whether the GPU of a rank can read the memory of all others, each rank having its own."""
    if len(devices) not in _SIZES or len({device.index for device in devices}) < len(devices):
        return False
    others = [device for i, device in enumerate(devices) if i != rank]
    return all(torch.cuda.can_device_access_peer(devices[rank], other) for other in others)
