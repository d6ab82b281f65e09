"""This process's place among the ranks of one engine, and what the ranks say to each other.

A model that is too large for one GPU is cut into as many shards as there are ranks. Each rank runs
the whole engine on its shard; sums and gathered tensors make the shards one model.

All ranks hold the same bits after an all-reduce, or their engines would part ways: each element is
summed on one rank alone, which then hands the sum to all. So do gloo's ring, NCCL's rings and trees
and symmetric memory's two-shot kernel; two ranks, for whom there is one order alone, may each sum
all. In which order more ranks are added depends there on where an element lies, and so a row's bits
on its place in the batch. Where these may not, every rank fetches the numbers of all and adds them
up in the order of the ranks. NVLink multicast, which sums inside the switch, stays off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist
from torch import nn

from sharegen.engine.model.fp8.products import multiply_rows_into, quantise_rows
from sharegen.engine.model.tensor_parallel.symmetric import (
    Product,
    SymmetricSum,
    shared_memory,
    symmetric_sum,
)
from sharegen.errors import ModelError

WITHOUT_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns x @ weight.T [T, N]; x: [T, K], weight: [N, K]."""

_groups: dict[str, dist.ProcessGroup] = {}  # by name: compiled code carries names
_symmetric: dict[str, SymmetricSum] = {}  # the same, where the GPUs share memory
_linears: dict[str, Linear] = {}  # the same, where products are not the library's
_in_order: set[str] = set()  # the same, where sums are added up in the order of the ranks
_alone = False

_OF_ONE_ORDER = 2  # ranks, at most: a + b and b + a are the same bits
_PIECE = 1 << 22  # numbers that are fetched from all ranks at a time


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process's place: rank 0..size-1, on `device`.

    group: sums tensors of the device. host_group: agrees on numbers of the host. Without them only
    torch's meta device can be asked, for shapes.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = None
    host_group: dist.ProcessGroup | None = None

    def begin(self) -> None:
        """Prepare for a forward of the model's shard."""
        shared = None if _alone else _shared(self._name)
        if shared is not None:
            shared.begin()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, in x's own memory where x is contiguous; any shape."""
        x = x.contiguous()
        torch.ops.sharegen.all_reduce_(x, self._name)
        return x

    def linear_sum(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' products: x [..., in] with weight [out, in] gives [..., out]."""
        return torch.ops.sharegen.linear_sum(x, weight, self._name)

    def multiply_by(self, linear: Linear) -> None:
        """From here on the products that are summed are what this gives."""
        _linears[self._name] = linear

    def sum_in_order(self) -> None:
        """From here on an element's sum does not depend on where it lies, or on what is beside."""
        if self.size > _OF_ONE_ORDER:
            _in_order.add(self._name)

    def fp8_linear_sum(
        self, x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
    ) -> torch.Tensor:
        """Do the same with a weight in e4m3; weight_scale: [out, 1]. x is scaled by each for
        itself.
        """
        rows, scales = quantise_rows(x)
        return torch.ops.sharegen.fp8_linear_sum(
            rows, scales, weight, weight_scale, x.dtype, self._name
        )

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        """Put the largest of the ranks' numbers at each place, in x's own memory."""
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def gather_last(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """Gather x [..., shard] into [..., size]: the shards of all ranks, in their order.

        A rank's shard is as long as its `share` of size.
        """
        return torch.ops.sharegen.gather_last(x, size, self.size, self._name)

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's x, written over the others'. Runs on the current stream, in a graph too."""
        dist.broadcast(x, 0, group=self.group)
        return x

    def least(self, number: int) -> int:
        """The smallest of the ranks' numbers. Every rank must ask; the GPU is not waited for."""
        held = torch.tensor([number], dtype=torch.int64)
        dist.all_reduce(held, dist.ReduceOp.MIN, group=self.host_group)
        return int(held)

    def all_of(self, text: str) -> list[str]:
        """What every rank says, by rank. Every rank must ask."""
        said: list[str] = [""] * self.size
        dist.all_gather_object(said, text, group=self.host_group)
        return said

    @property
    def _name(self) -> str:
        return "" if self.group is None else self.group.group_name


def share(units: int, rank: int, size: int) -> tuple[int, int]:
    """Return (first, count) of the units that a rank has; the first ranks have one more where it
    must be.

    Where there are fewer units than ranks, neighbouring ranks have the same one.
    """
    if units < size:
        return rank * units // size, 1
    count, more = divmod(units, size)
    return rank * count + min(rank, more), count + (rank < more)


def connect(
    rank: int,
    size: int,
    address: str,
    device: torch.device,
    timeout: timedelta = timedelta(minutes=10),
) -> Ranks:
    """Join the ranks of an engine; returns once all are there.

    address: where they meet, as `torch.distributed` has it: tcp://HOST:PORT or file:///PATH.
    timeout: how long a rank waits for another one, here and later.
    Raises ModelError when they do not meet.
    """
    os.environ.update(WITHOUT_MULTICAST)
    if sys.platform == "linux":  # ranks of one engine are processes of one machine
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
        _let_segments_grow()
    try:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", init_method=address, rank=rank, world_size=size,
            timeout=timeout, device_id=device if on_gpu else None,
        )  # fmt: skip
        group = dist.group.WORLD
        host_group = dist.new_group(backend="gloo", timeout=timeout) if on_gpu else group
        assert group is not None and host_group is not None
        ranks = Ranks(rank, size, device, group, host_group)
        ranks.least(1)  # one that went on, and failed, would leave another connecting for ever
    except (dist.DistError, RuntimeError, ValueError) as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        # Else torch would count this group, and its next one here have another name than elsewhere.
        dist.distributed_c10d._world.group_count = 0
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"rank {rank} of {size} cannot reach the others: {reason:.200}") from None
    _groups[group.group_name] = group
    if on_gpu:
        _share_memory(ranks)
    else:
        ranks.sum_in_order()  # a sample's bits never depend on its batch there
    return ranks


def _let_segments_grow() -> None:
    """Have torch's allocator map pages as it needs them, unless its user says how it works.

    Memory in pieces of fixed sizes is full before it is used up, and a rank that finds none in
    mid-step takes the others along.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def _share_memory(ranks: Ranks) -> None:
    """Take the faster kernel for small sums, where all ranks can; else NCCL does them all."""
    assert ranks.group is not None
    devices = [torch.device(device) for device in ranks.all_of(str(ranks.device))]
    if not ranks.least(shared_memory(devices, ranks.rank)):
        return
    try:
        found = symmetric_sum(ranks.group, ranks.device)
    except RuntimeError:  # a driver or a container that does not hand memory on
        found = None
    if ranks.least(found is not None) and found is not None:
        _symmetric[ranks.group.group_name] = found


def is_idle() -> bool:
    """Whether this rank's GPU has done all that may wait for others in memory that they share."""
    return all(shared.is_idle for shared in list(_symmetric.values()))


def disconnect() -> None:
    """Leave the ranks. No captured graph may hold a collective any more: it would be waited for."""
    _groups.clear()
    _linears.clear()
    _in_order.clear()
    _symmetric.clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def abort() -> None:
    """Leave the ranks when others are gone: what waits for them on this GPU waits no longer.

    What was waited for is not there then. Returns when no captured graph holds a collective.
    """
    if dist.is_initialized() and dist.get_backend() == "nccl":
        groups = list(_groups.values())
        _groups.clear()
        _linears.clear()
        _in_order.clear()
        waiting = [Thread(target=shared.let_go) for shared in _symmetric.values()]
        for thread in waiting:  # beside, for each may wait for what the other lets go
            thread.start()
        for group in groups:  # lets these threads run meanwhile, which torch's own order does not
            group.abort()
        dist.distributed_c10d._abort_process_group()
        for thread in waiting:
            thread.join()
        _symmetric.clear()
    else:
        disconnect()


@contextmanager
def alone() -> Iterator[None]:
    """Sums and gathers inside are made of this rank's shard alone.

    For a trial of what this rank can do: where one cannot, the others would wait for it.
    """
    global _alone
    _alone = True
    try:
        yield
    finally:
        _alone = False


# The compiler takes both as they are: it neither looks inside nor moves one before another that
# works on the same tensor.
@torch.library.custom_op("sharegen::all_reduce_", mutates_args=("x",))
def _all_reduce(x: torch.Tensor, group: str) -> None:
    if _alone:
        return
    shared = _shared(group)
    if shared is not None and shared.takes(x.numel(), x.dtype):
        shared.add_up(x)
    else:
        _add_up(x, group)


@torch.library.custom_op("sharegen::linear_sum", mutates_args=())
def _linear_sum(x: torch.Tensor, weight: torch.Tensor, group: str) -> torch.Tensor:
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    return _sum_of(_linear(x, weight, group), out, None, group)


@_linear_sum.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, group: str) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("sharegen::linear_sum_onto", mutates_args=())
def _linear_sum_onto(
    x: torch.Tensor, weight: torch.Tensor, base: torch.Tensor, group: str
) -> torch.Tensor:
    """What `base + linear_sum(x, weight)` gives; the compiler puts it there (`adding.py`)."""
    out = x.new_empty(*x.shape[:-1], weight.shape[0])
    return _sum_of(_linear(x, weight, group), out, base, group)


@_linear_sum_onto.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, base: torch.Tensor, group: str) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("sharegen::fp8_linear_sum", mutates_args=())
def _fp8_linear_sum(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
    group: str,
) -> torch.Tensor:
    out = rows.new_empty(*rows.shape[:-1], weight.shape[0], dtype=dtype)
    return _sum_of(_fp8_linear(rows, scales, weight, weight_scale), out, None, group)


@_fp8_linear_sum.register_fake
def _(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
    group: str,
) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], weight.shape[0], dtype=dtype)


@torch.library.custom_op("sharegen::fp8_linear_sum_onto", mutates_args=())
def _fp8_linear_sum_onto(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
    base: torch.Tensor,
    group: str,
) -> torch.Tensor:
    """What `base + fp8_linear_sum(...)` gives; the compiler puts it there (`adding.py`)."""
    out = rows.new_empty(*rows.shape[:-1], weight.shape[0], dtype=dtype)
    return _sum_of(_fp8_linear(rows, scales, weight, weight_scale), out, base, group)


@_fp8_linear_sum_onto.register_fake
def _(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    dtype: torch.dtype,
    base: torch.Tensor,
    group: str,
) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], weight.shape[0], dtype=dtype)


def _linear(x: torch.Tensor, weight: torch.Tensor, group: str) -> Product:
    rows = x.reshape(-1, x.shape[-1])

    def write(out: torch.Tensor) -> None:
        if group in _linears:
            out.copy_(_linears[group](rows, weight))
        else:
            torch.mm(rows, weight.t(), out=out)

    return write


def _fp8_linear(
    rows: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
) -> Product:
    flat = rows.reshape(-1, rows.shape[-1]), scales.reshape(-1, 1)

    def write(out: torch.Tensor) -> None:
        multiply_rows_into(out, *flat, weight, weight_scale)

    return write


def _sum_of(
    product: Product, out: torch.Tensor, base: torch.Tensor | None, group: str
) -> torch.Tensor:
    """Write to `out`, of any shape, the sum of all ranks' products, onto base where there is one.

    A product is computed where it is summed, which spares a copy.
    """
    shared = None if _alone else _shared(group)
    flat = out.view(-1, out.shape[-1])
    if shared is not None and shared.takes(out.numel(), out.dtype):
        shared.add_up_products(product, flat, base)
        return out
    product(flat)
    if not _alone:
        _add_up(out, group)
    return out if base is None else out.add_(base)


def _shared(group: str) -> SymmetricSum | None:
    """What sums by memory that the GPUs share, where it may choose the order."""
    return None if group in _in_order else _symmetric.get(group)


def _add_up(x: torch.Tensor, group: str) -> None:
    """Write the sum of all ranks' x over x, which is contiguous.

    In order it is kept in float32 and rounded once; piece by piece, which changes no element, for
    the numbers of all ranks together are more than a step has memory for.
    """
    if group not in _in_order:
        dist.all_reduce(x, group=_groups[group])
        return
    for piece in x.view(-1).split(_PIECE):
        first, *others = _fetch(piece[None], _groups[group].size(), group)
        total = first.float()
        for each in others:
            total += each
        piece.copy_(total)


def _fetch(x: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
    """All ranks' x [1, ...], in the order of the ranks: [ranks, ...]."""
    functional = torch.ops._c10d_functional
    found: torch.Tensor = functional.wait_tensor(functional.all_gather_into_tensor(x, ranks, group))
    return found


@torch.library.custom_op("sharegen::gather_last", mutates_args=())
def _gather_last(x: torch.Tensor, size: int, ranks: int, group: str) -> torch.Tensor:
    longest = -(-size // ranks)
    if x.shape[-1] < longest:
        x = nn.functional.pad(x, (0, longest - x.shape[-1]))
    x = x[None].contiguous()
    shards = x.expand(ranks, *x.shape[1:]) if _alone else _fetch(x, ranks, group)
    lengths = [share(size, rank, ranks)[1] for rank in range(ranks)]
    return torch.cat([shard[..., :n] for shard, n in zip(shards, lengths, strict=True)], -1)


@_gather_last.register_fake
def _(x: torch.Tensor, size: int, ranks: int, group: str) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], size)
