"""Weights as small floats with scales: FP8 by rows or blocks of 128 x 128, MXFP4 by 32 of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sharegen.engine.model.fp4.numbers import powers, widened
from sharegen.engine.model.fp8.blocks import BLOCK
from sharegen.engine.model.stored.dequantised import (
    Dequantised,
    check_kind,
    check_shape,
    part_of,
    usable,
)
from sharegen.engine.model.stored.unread import Unread
from sharegen.errors import ModelError
from sharegen.kernels.fp4_words import GROUP

Tensors = dict[str, Unread]


@dataclass(frozen=True)
class FP8Blocks:
    """A weight in e4m3 with a float for each 128 x 128 of it, under its name and `scale`."""

    scale: str

    def __str__(self) -> str:
        return f"FP8 by blocks of {BLOCK}"

    def weight(self, model: str, name: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: "weight" [..., N, K] and "scale" [..., N / 128, K / 128]."""
        values, scales = parts["weight"], parts["scale"]
        *leading, outputs, inputs = values.shape
        expected = [*leading, -(-outputs // BLOCK), -(-inputs // BLOCK)]
        check_shape(model, f"{name}{self.scale}", scales, expected)
        check_kind(model, f"{name}{self.scale}", scales, None)
        across = torch.arange(inputs) // BLOCK

        def of_rows(place: tuple[int, ...], begin: int, count: int) -> torch.Tensor:
            own = part_of(scales, *place, slice(begin, begin + count), slice(None))
            return usable(model, f"{name}{self.scale}", own, positive=True)

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            wide = _numbers(model, name, values, place, first, count)
            begin, end = first // BLOCK, -(-(first + count) // BLOCK)
            down = torch.arange(first, first + count) // BLOCK - begin
            return wide * of_rows(place, begin, end - begin)[down][:, across]

        of_blocks = Dequantised(torch.Size(expected), torch.float32, of_rows)
        return Dequantised(values.shape, dtype, rows, stored=values.source, scales=of_blocks)


def _numbers(
    model: str, name: str, values: Unread, place: tuple[int, ...], first: int, count: int
) -> torch.Tensor:
    """Rows of e4m3 in float32. Raises ModelError for NaN: e4m3 has nothing else not finite."""
    wide = part_of(values, *place, slice(first, first + count), slice(None)).float()
    if wide.sum().isnan():
        raise ModelError(f"model {model}: {name} holds NaN: the checkpoint is broken")
    return wide


@dataclass(frozen=True)
class FP8Rows:
    """A weight in e4m3 with a float for each row of it, or one for all, as experts have it."""

    scale = "_scale"

    def __str__(self) -> str:
        return "FP8 with a scale a row"

    def weight(self, model: str, name: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: "weight" [N, K] and "scale" [N, 1], or one number."""
        values, scales = parts["weight"], parts["scale"]
        check_kind(model, name, values, None, 2)
        check_kind(model, f"{name}{self.scale}", scales, None)
        is_one = scales.numel() == 1
        if not is_one:
            check_shape(model, f"{name}{self.scale}", scales, [values.shape[0], 1])

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            own = (
                scales.read().view(1, 1)
                if is_one
                else part_of(scales, slice(first, first + count), slice(None))
            )
            wide = _numbers(model, name, values, place, first, count)
            return wide * usable(model, f"{name}{self.scale}", own, positive=True)

        return Dequantised(values.shape, dtype, rows)


@dataclass(frozen=True)
class MXFP4:
    """e2m1, two numbers a byte, with a power of two for 32 of them; the weight lies transposed."""

    def __str__(self) -> str:
        return "MXFP4"

    def weight(self, model: str, name: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: "blocks" [..., N, G, 16] and "scales" [..., N, G], uint8. Returns [..., N, K]."""
        blocks, scales = parts["blocks"], parts["scales"]
        check_kind(model, f"{name}_blocks", blocks, torch.uint8)
        check_kind(model, f"{name}_scales", scales, torch.uint8)
        *leading, outputs, groups, _ = blocks.shape
        check_shape(model, f"{name}_blocks", blocks, [*leading, outputs, groups, GROUP // 2])
        check_shape(model, f"{name}_scales", scales, [*leading, outputs, groups])

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            own = slice(first, first + count)
            exponents = part_of(scales, *place, own, slice(None))
            usable(model, f"{name}_scales", powers(exponents))
            return widened(part_of(blocks, *place, own, slice(None), slice(None)), exponents)

        shape = torch.Size([*leading, outputs, groups * GROUP])
        return Dequantised(
            shape, dtype, rows, small=True, stored=blocks.source, scales=scales.source
        )
