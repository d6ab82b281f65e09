"""Weights that a checkpoint has in fewer bits, as tensors that become numbers when they are read.

A form (`forms.py`) puts one of these in the place of what belongs to a weight, under the name that
the weight has in a checkpoint that is not quantised. So whatever transformers, a rank or FP8 does
with weights, it does with these, and beside the result there is a piece of one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from sharegen.engine.model.stored.unread import Unread, leaves
from sharegen.errors import ModelError

_PIECE = 2**22  # numbers that are wide at a time

Rows = Callable[[tuple[int, ...], int, int], torch.Tensor]
"""(place in the leading dimensions, first row, how many) -> [rows, K] in float32."""


@dataclass(frozen=True)
class Dequantised:
    """A weight of [..., N, K], of which rows can be read.

    dtype: what each number is rounded to. small: whether the numbers are floats of few bits, with
    powers of two as scales, which larger floats may hold as they are. stored and scales: of a
    weight in FP8 blocks, where its numbers come from, and a scale for each block; of one in MXFP4,
    where its bytes and those of its scales do.
    """

    shape: torch.Size
    dtype: torch.dtype
    rows: Rows
    small: bool = False
    stored: Any = None
    scales: Any = None

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        """Read what begins at `start` and is as large as `out`."""
        *leading, first, column = start
        step = max(1, _PIECE // self.shape[-1])
        places = product(*map(range, out.shape[:-2]))
        for place in places:
            piece = out[place]
            at = tuple(i + j for i, j in zip(leading, place, strict=True))
            for row in range(0, len(piece), step):
                part = piece[row : row + step]
                wide = self.rows(at, first + row, len(part))
                part.copy_(wide[:, column : column + part.shape[1]].to(self.dtype))


def is_small(weight: torch.Tensor) -> bool:
    """Whether it is a weight, not read yet, of small floats with a power of two for each group."""
    return isinstance(weight, Unread) and all(
        isinstance(leaf, Dequantised) and leaf.small for leaf in leaves(weight)
    )


def part_of(tensor: Unread, *index: int | slice) -> torch.Tensor:
    """Read some of a tensor, by an index for each dimension; an int's dimension goes."""
    start, lengths, kept = [], [], []
    for size, each in zip(tensor.shape, index, strict=True):
        first, end = (each, each + 1) if isinstance(each, int) else each.indices(size)[:2]
        start.append(first)
        lengths.append(end - first)
        if not isinstance(each, int):
            kept.append(end - first)
    out = torch.empty(lengths, dtype=tensor.dtype)
    tensor.source.fill(out, start)
    return out.view(kept)


def unpack(words: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Integers of so many bits, the lowest first, of words of 32; `dim` grows by 32 / bits."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = words.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (words.ndim - dim - 1))
    return (numbers & (2**bits - 1)).flatten(dim, dim + 1)


def check_shape(model: str, name: str, tensor: Unread, expected: Sequence[int]) -> None:
    """Raise ModelError where a part of a weight has another shape."""
    if list(tensor.shape) != list(expected):
        raise ModelError(
            f"model {model}: {name} is {list(tensor.shape)} and should be {list(expected)}: the "
            "checkpoint is broken"
        )


def check_kind(
    model: str, name: str, tensor: Unread, dtype: torch.dtype | None, dimensions: int | None = None
) -> None:
    """Raise ModelError where a part of a weight has another dtype, or number of dimensions.

    dtype: None stands for any floats.
    """
    is_right = tensor.dtype.is_floating_point if dtype is None else tensor.dtype == dtype
    if not is_right:
        wanted = "floats" if dtype is None else dtype
        raise ModelError(
            f"model {model}: {name} is {tensor.dtype} and should be {wanted}: the checkpoint is "
            "broken"
        )
    if dimensions is not None and tensor.ndim != dimensions:
        raise ModelError(
            f"model {model}: {name} is {list(tensor.shape)} and should have {dimensions} "
            "dimensions: the checkpoint is broken"
        )


def usable(model: str, name: str, scales: torch.Tensor, positive: bool = False) -> torch.Tensor:
    """Scales in float32. Raises ModelError where one is no number, or is not `positive`."""
    wide = scales.float()
    if not wide.isfinite().all() or (positive and not (wide > 0).all()):
        kind = "zero, negative or no number" if positive else "no number"
        raise ModelError(
            f"model {model}: {name} holds a scale that is {kind}: the checkpoint is broken"
        )
    return wide
