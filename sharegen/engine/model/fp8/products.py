"""Products of FP8 numbers: rows of e4m3 with a scale each, for weights and for activations.

A row of a weight (an output channel) is scaled once, a row of activations as it comes, so that the
largest number of each becomes e4m3's largest; nothing is calibrated, and no finite row is out of
range. Micikevicius et al., "FP8 Formats for Deep Learning" (2209.05433).
"""

from __future__ import annotations

import os

import torch
from torch import nn

from sharegen.errors import ModelError, UsageError

E4M3 = torch.float8_e4m3fn
MULTIPLE = 16
"""What the sizes of a weight must be multiples of: the tensor cores take no others."""

EMULATE = "SHAREGEN_EMULATE_FP8"
"""Set to 1, a CPU multiplies the same numbers widened to float32, slowly: for tests."""

_LARGEST = torch.finfo(E4M3).max
LEAST = 1e-30  # of a row's largest number: zeros are divided by something, too
_FAST_ACCUMULATION = False  # Hopper adds up in fewer than float32's bits, ever worse in long sums


def emulates() -> bool:
    """Whether a CPU multiplies numbers in FP8 as a GPU would, for tests."""
    return os.environ.get(EMULATE) == "1"


def check_device(device: torch.device, experts: bool = False, quantization: str = "fp8") -> None:
    """Raise UsageError, in one line, for a device without such products.

    experts: whether the model has experts, whose grouped products fewer cards have. quantization:
    what was asked for.
    """
    if device.type != "cuda":
        if not emulates():
            raise UsageError(
                "FP8 weights need a GPU with FP8 (compute capability 8.9 or later), and the device "
                f"is {device.type}: leave out --quantization {quantization}, or give a checkpoint "
                "without FP8"
            )
        return
    major, minor = torch.cuda.get_device_capability(device)
    card = f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}"
    if (major, minor) < (8, 9):
        raise UsageError(
            f"FP8 weights need a GPU with FP8 (compute capability 8.9 or later), and {card}: leave "
            "out --quantization fp8, or give a checkpoint without FP8"
        )
    if experts and major not in (9, 10):
        raise ModelError(
            "FP8 experts need a GPU with grouped products of FP8 (compute capability 9.0 or "
            f"10.0), and {card}: leave out --quantization fp8"
        )


def quantise_rows(
    x: torch.Tensor, largest: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., K] into (e4m3 [..., K], scales [..., 1] in float32); x is about their
    product.

    largest: [..., 1] in float32, of rows of which x is a part; by default x's own.
    A row that holds NaN or an infinite number becomes NaN, and a row of zeros stays one.
    """
    wide = x.float()
    if largest is None:
        largest = largest_of_rows(wide)
    scales = largest.clamp(min=LEAST) / _LARGEST
    return (wide / scales).to(E4M3), scales


def quantise_rows_by_powers(
    x: torch.Tensor, largest: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with a power of two as the scale of each row.

    Numbers of few bits are then not rounded, where the row's exponents lie within those of e4m3.
    """
    wide = x.float()
    if largest is None:
        largest = largest_of_rows(wide)
    exponents = (largest.clamp(min=LEAST, max=1e30) / _LARGEST).log2().ceil().int()
    scales = ((exponents + 127) << 23).view(torch.float32)  # exact on any device
    scales = torch.where(largest.isfinite(), scales, torch.nan)
    return (wide / scales).to(E4M3), scales


def rows_of(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the rows of x [T, K] as `quantise_rows` does, on a GPU by one kernel."""
    if not x.is_cuda:
        return quantise_rows(x)
    from sharegen.kernels import fp8_rows as kernels  # which needs Triton

    rows = kernels.rows_of(x, LEAST)
    return rows.numbers, rows.scales


_library = torch.library.Library("sharegen", "FRAGMENT")
_library.define("quantise_rows(Tensor x) -> (Tensor, Tensor)")
# So it is one node of a layer that is compiled until our passes (graph_passes.py) have seen it.
_library.impl("quantise_rows", lambda x: quantise_rows(x), "CompositeImplicitAutograd")
QUANTISE = (torch.ops.sharegen.quantise_rows, torch.ops.sharegen.quantise_rows.default)
"""What nodes of a compiled layer's graph that call it have as their target."""


def largest_of_rows(x: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute number of each row: x [..., K] gives [..., 1]."""
    return x.abs().amax(dim=-1, keepdim=True)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Quantise x, and multiply it by a weight in FP8.

    Args:
        x: [..., K].
        weight: [N, K] in e4m3.
        weight_scale: [N, 1].
        bias: [N], or None.

    Returns:
        [..., N] in x's dtype.
    """
    rows, scales = torch.ops.sharegen.quantise_rows(x)
    rows, scales = rows.reshape(-1, x.shape[-1]), scales.reshape(-1, 1)
    out = multiply_rows(rows, scales, weight, weight_scale)
    if bias is not None:
        out = out + bias
    return out.to(x.dtype).view(*x.shape[:-1], -1)


def multiply_rows(
    rows: torch.Tensor, scales: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor
) -> torch.Tensor:
    """The product of what is quantised, in bfloat16 on a GPU and in float32 on a CPU.

    rows: [T, K], weight: [N, K] in e4m3, scales: [T, 1], weight_scale: [N, 1] -> [T, N]
    """
    if weight.is_cuda:
        return _scaled_mm(rows, scales, weight, weight_scale)
    return nn.functional.linear(rows.float(), weight.float()) * scales * weight_scale.t()


def multiply_rows_into(
    out: torch.Tensor,
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
) -> None:
    """Write that to `out`, of any dtype."""
    if weight.is_cuda and out.dtype is torch.bfloat16:
        _scaled_mm(rows, scales, weight, weight_scale, out=out)
    else:
        out.copy_(multiply_rows(rows, scales, weight, weight_scale))


def _scaled_mm(
    rows: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    **out: torch.Tensor,
) -> torch.Tensor:
    return torch._scaled_mm(
        rows,
        weight.t(),
        scale_a=scales,
        scale_b=weight_scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=_FAST_ACCUMULATION,
        **out,
    )


def multiply_groups(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Rows that lie group by group, each group with a weight of its own.

    x: [T, K], weight: [G, N, K] in e4m3, weight_scale: [G, N, 1], ends: [G] the row after each
    group's last, int32 -> [T, N] as x.
    """
    if weight.is_meta:  # there are no ends
        return x.new_empty(len(x), weight.shape[1])
    rows, scales = quantise_rows(x)
    if weight.is_cuda:
        out = torch._scaled_grouped_mm(
            rows,
            weight.transpose(-2, -1),
            scales.squeeze(-1),
            weight_scale.squeeze(-1),
            offs=ends,
            out_dtype=torch.bfloat16,
            use_fast_accum=_FAST_ACCUMULATION,
        )
        return out.to(x.dtype)
    products = []
    start = 0
    for group, end in enumerate(ends.tolist()):
        products.append(rows[start:end].float() @ weight[group].float().t())
        products[-1] *= scales[start:end] * weight_scale[group].t()
        start = end
    return torch.cat(products).to(x.dtype)


class FP8Linear(nn.Module):
    """A linear layer with its weight in e4m3.

    weight: [out_features, in_features]; weight_scale: [out_features, 1] in float32.
    """

    def __init__(
        self, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(weight_scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.weight, self.weight_scale, self.bias)
