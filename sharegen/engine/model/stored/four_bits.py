"""Weights as integers of four bits (or 2, or 8): GPTQ, AWQ and compressed-tensors' packed ones.

A weight is (integer - zero point) * scale, the last two those of a group of inputs. Eight integers
lie in a word of 32 bits: of GPTQ along the inputs, of AWQ along the outputs in an order of its own,
of compressed-tensors along the inputs of the transposed weight. GPTQ's first format has zero points
less one. Layouts are those that AutoGPTQ, AutoAWQ and compressed-tensors write.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sharegen.engine.model.stored.dequantised import (
    Dequantised,
    check_kind,
    check_shape,
    part_of,
    unpack,
    usable,
)
from sharegen.engine.model.stored.unread import Unread
from sharegen.errors import ModelError

_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in a word AWQ has the integer of each of eight outputs."""

Tensors = dict[str, Unread]


@dataclass(frozen=True)
class GPTQ:
    """group_size: inputs that share a scale; None for all. less_one: of the stored zero points."""

    bits: int
    group_size: int | None
    less_one: bool

    suffix = "qweight"
    parts = ("qzeros", "scales")
    optional = ("g_idx",)

    def __str__(self) -> str:
        return f"GPTQ of {self.bits} bits"

    def weight(self, model: str, prefix: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: qweight [K / 8, N], qzeros [G, N / 8], scales [G, N], and g_idx [K] or none."""
        bits, per_word = self.bits, 32 // self.bits
        words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
        _check_kinds(model, prefix, parts, "qweight", "qzeros", "scales")
        inputs, outputs = words.shape[0] * per_word, words.shape[1]
        groups = _groups(inputs, self.group_size)
        check_shape(model, f"{prefix}scales", scales, [groups, outputs])
        check_shape(model, f"{prefix}qzeros", zeros, [groups, -(-outputs // per_word)])
        group = _group_of(model, prefix, parts.get("g_idx"), inputs, self.group_size, groups)

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            begin, end = first // per_word, -(-(first + count) // per_word)
            own = slice(first - begin * per_word, first - begin * per_word + count)
            zero = unpack(part_of(zeros, slice(None), slice(begin, end)), bits, 1)[:, own]
            zero = (zero + 1) & (2**bits - 1) if self.less_one else zero
            outputs = slice(first, first + count)
            scale = usable(model, f"{prefix}scales", part_of(scales, slice(None), outputs))
            number = unpack(part_of(words, slice(None), outputs), bits, 0)
            return ((number - zero[group]).float() * scale[group]).t()

        return Dequantised(torch.Size([outputs, inputs]), dtype, rows)


@dataclass(frozen=True)
class AWQ:
    """Four bits. group_size: inputs that share a scale; None for all."""

    group_size: int | None

    suffix = "qweight"
    parts = ("qzeros", "scales")
    optional = ()

    def __str__(self) -> str:
        return "AWQ of 4 bits"

    def weight(self, model: str, prefix: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: qweight [K, N / 8], qzeros [G, N / 8], scales [G, N]."""
        words, zeros, scales = parts["qweight"], parts["qzeros"], parts["scales"]
        _check_kinds(model, prefix, parts, "qweight", "qzeros", "scales")
        inputs, outputs = words.shape[0], words.shape[1] * 8
        groups = _groups(inputs, self.group_size)
        check_shape(model, f"{prefix}scales", scales, [groups, outputs])
        check_shape(model, f"{prefix}qzeros", zeros, [groups, words.shape[1]])
        group = torch.arange(inputs) // (self.group_size or inputs)

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            begin, end = first // 8, -(-(first + count) // 8)
            columns, own = slice(begin, end), slice(first - begin * 8, first - begin * 8 + count)

            def integers(packed: Unread) -> torch.Tensor:
                numbers = unpack(part_of(packed, slice(None), columns), 4, 1)
                return numbers.unflatten(1, (-1, 8))[..., _AWQ_PLACES].flatten(1)[:, own]

            outputs = slice(first, first + count)
            scale = usable(model, f"{prefix}scales", part_of(scales, slice(None), outputs))
            return ((integers(words) - integers(zeros)[group]).float() * scale[group]).t()

        return Dequantised(torch.Size([outputs, inputs]), dtype, rows)


@dataclass(frozen=True)
class PackedRows:
    """compressed-tensors' pack-quantized. group_size: inputs that share a scale; None for all."""

    bits: int
    group_size: int | None
    symmetric: bool

    suffix = "weight_packed"

    @property
    def parts(self) -> tuple[str, ...]:
        zero = () if self.symmetric else ("weight_zero_point",)
        return ("weight_scale", "weight_shape", *zero)

    optional = ("weight_g_idx",)

    def __str__(self) -> str:
        return f"compressed-tensors of {self.bits} bits"

    def weight(self, model: str, prefix: str, parts: Tensors, dtype: torch.dtype) -> Dequantised:
        """parts: weight_packed [N, K / 8], weight_scale [N, G], weight_zero_point [N / 8, G]."""
        bits, per_word = self.bits, 32 // self.bits
        words, scales = parts["weight_packed"], parts["weight_scale"]
        zeros = parts.get("weight_zero_point")
        _check_kinds(model, prefix, parts, "weight_packed", "weight_zero_point", "weight_scale")
        check_shape(model, f"{prefix}weight_shape", parts["weight_shape"], [2])
        outputs, inputs = (int(size) for size in parts["weight_shape"].read().tolist())
        groups = _groups(inputs, self.group_size)
        packed = -(-inputs // per_word)
        check_shape(model, f"{prefix}weight_packed", words, [outputs, packed])
        check_shape(model, f"{prefix}weight_scale", scales, [outputs, groups])
        if zeros is not None:
            expected = [-(-outputs // per_word), groups]
            check_shape(model, f"{prefix}weight_zero_point", zeros, expected)
        group = _group_of(model, prefix, parts.get("weight_g_idx"), inputs, self.group_size, groups)
        middle = 2 ** (bits - 1)

        def rows(place: tuple[int, ...], first: int, count: int) -> torch.Tensor:
            own = slice(first, first + count)
            number = unpack(part_of(words, own, slice(None)), bits, 1)[:, :inputs]
            scale = usable(model, f"{prefix}weight_scale", part_of(scales, own, slice(None)))
            if zeros is None:
                return (number - middle).float() * scale[:, group]
            begin, end = first // per_word, -(-(first + count) // per_word)
            zero = unpack(part_of(zeros, slice(begin, end), slice(None)), bits, 0)
            zero = zero[first - begin * per_word :][:count]
            return (number - zero[:, group]).float() * scale[:, group]

        return Dequantised(torch.Size([outputs, inputs]), dtype, rows)


def _check_kinds(model: str, prefix: str, parts: Tensors, *names: str) -> None:
    """names: of the words, of their zero points, which may not be there, and of the scales."""
    *words, scales = names
    for name in words:
        if name in parts:
            check_kind(model, f"{prefix}{name}", parts[name], torch.int32, 2)
    check_kind(model, f"{prefix}{scales}", parts[scales], None, 2)


def _groups(inputs: int, group_size: int | None) -> int:
    return 1 if group_size is None else -(-inputs // group_size)


def _group_of(
    model: str, prefix: str, stored: Unread | None, inputs: int, size: int | None, groups: int
) -> torch.Tensor:
    """The group of each input, [inputs]: in order, unless the checkpoint says otherwise."""
    if stored is None:
        return torch.arange(inputs) // (size or inputs)
    check_shape(model, f"{prefix}g_idx", stored, [inputs])
    group = stored.read().long()
    if (group == -1).all():  # compressed-tensors' way of saying that there is no other order
        return torch.arange(inputs) // (size or inputs)
    if group.min() < 0 or group.max() >= groups:
        raise ModelError(
            f"model {model}: {prefix}g_idx names groups outside 0 to {groups - 1}: the checkpoint "
            "is broken"
        )
    return group
