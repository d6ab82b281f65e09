"""The operator of a linear layer whose rows have the same bits, however many there are.

What it does for a shape is found out when the shape is first met (`trial.py`), for the numbers of
rows that the engine runs. It is an operator of its own, so that compiled code and captured graphs
take it as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec

import torch
from torch.nn.functional import pad

from sharegen.engine.model.fp8.blocks import multiply_blocks, quantise_blocks, scaled_product
from sharegen.engine.model.steady.trial import try_ways
from sharegen.engine.model.steady.ways import Multiply, ProductShape, Ways

_CALLS, _REPEATS = 8, 3

_sizes: tuple[int, ...] = ()
_tried: dict[ProductShape, Ways] = {}


def steady_for(sizes: Sequence[int]) -> None:
    """Let products be tried for these numbers of rows, too."""
    global _sizes
    if not set(sizes) <= set(_sizes):
        _sizes = tuple(sorted({*_sizes, *sizes}))
        _tried.clear()


def tried() -> dict[ProductShape, Ways]:
    """What has been tried in this process so far."""
    return dict(_tried)


def ways_of(weight: torch.Tensor, bias: torch.Tensor | None) -> Ways:
    """The ways of a layer of such a weight [N, K], which are tried now if they were not before."""
    width, size = weight.shape
    shape = ProductShape(size, width, weight.dtype, bias is not None, weight.device)
    if shape not in _tried:
        _tried[shape] = try_ways(shape, _sizes, lambda rows: _kernels(shape, rows), _microseconds)
    return _tried[shape]


def block_ways_of(weight: torch.Tensor) -> Ways:
    """The same of a layer of a weight [N, K] in FP8 by blocks; each is the library's, with so many
    rows at a time."""
    width, size = weight.shape
    shape = ProductShape(size, width, torch.bfloat16, False, weight.device, in_blocks=True)
    if shape not in _tried:
        library = _OfBlocks()
        _tried[shape] = try_ways(shape, _sizes, lambda _: (), _microseconds, library)
        library.forget()
    return _tried[shape]


class _OfBlocks:
    """The product of FP8 by blocks in a trial, whose weight is quantised when it is first met."""

    def __init__(self) -> None:
        self._quantised: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self._quantised is None:
            self._quantised = quantise_blocks(weight)
        return multiply_blocks(x, *self._quantised)

    def forget(self) -> None:
        """Give the weight's memory back; what was found out is kept, and this with it."""
        self._quantised = None


@torch.library.custom_op("sharegen::steady_product", mutates_args=())
def steady_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight.T + bias [..., N]; x: [..., K], weight: [N, K], bias: [N]."""
    rows = x.flatten(0, -2).contiguous()  # as in the trial: a library may look at strides, too
    out = ways_of(weight, bias).multiply(rows, weight, bias)
    return out.view(*x.shape[:-1], len(weight))


@steady_product.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("sharegen::steady_block_product", mutates_args=())
def steady_block_product(
    rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """`scaled_product` [T, N] of the same: rows [T, K], own [K / 128, T], and a weight [N, K]."""
    count, at_a_time = len(rows), block_ways_of(weight).rows_together(len(rows))
    if count == at_a_time:
        return scaled_product(rows, own, weight, scales)
    more = -count % at_a_time
    bytes_of_rows = pad(rows.view(torch.uint8), (0, 0, 0, more)).split(at_a_time)
    parts = zip(bytes_of_rows, pad(own, (0, more)).split(at_a_time, dim=1), strict=True)
    done = [
        scaled_product(part.view(rows.dtype), its.contiguous(), weight, scales)
        for part, its in parts
    ]
    return (done[0] if len(done) == 1 else torch.cat(done))[:count]


@steady_block_product.register_fake
def _(
    rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=torch.bfloat16)


def _kernels(shape: ProductShape, rows: int) -> Iterable[Multiply]:
    if shape.device.type != "cuda" or find_spec("triton") is None:
        return []
    from sharegen.kernels.unsplit_product import tiles_for, unsplit_product

    tiles = tiles_for(rows, shape.size, shape.dtype)
    return [partial(unsplit_product, tile=tile) for tile in tiles]


def _microseconds(call: Callable[[], object]) -> float:
    """How long a call takes, on a GPU as a part of a graph: the host is not waited for."""
    if not torch.cuda.is_available():
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            call()
    times = []
    for _ in range(_REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / _CALLS)
    return min(times)
