"""Products of FP8 numbers as a checkpoint in blocks means them: a scale for 128 x 128 of a weight.

Activations are scaled by 128 numbers of a row, as they come, so that the largest of these becomes
e4m3's largest. Sums are in float32. DeepSeek-AI, "DeepSeek-V3 Technical Report" (2412.19437),
section 3.3. On a GPU the library multiplies linear layers, and a kernel experts; a CPU multiplies
the same numbers in float32.
"""

from __future__ import annotations

from math import prod

import torch
from torch import nn
from torch.nn import functional

from sharegen.engine.model.fp8.products import E4M3, LEAST, check_device, emulates
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.errors import UsageError

BLOCK = 128

_FOURS = 4  # rows, and blocks along a sum, come in multiples of these on a GPU

_LARGEST = torch.finfo(E4M3).max
_LEAST_CAPABILITY = (9, 0)
_TRIAL = 256  # numbers of a side
_TOLERANCE = 0.01  # of the norm: bfloat16 rounds the result to 0.002


def check_block_products(device: torch.device) -> None:
    """Raise UsageError, in one line, for a device or a torch without such products, or wrong ones.

    A CPU has them where it emulates FP8, as `check_device` says.
    """
    if device.type != "cuda":
        check_device(device, quantization=BLOCKS)
    reason = no_block_products(device) or wrong_block_products(device)
    if reason is not None:
        raise UsageError(
            f"FP8 by blocks is not multiplied as it is stored here: {reason}: leave out "
            f"--quantization {BLOCKS}, and weights are dequantised"
        )


def no_block_products(device: torch.device) -> str | None:
    """Why a device or this torch has no such products, if so; a GPU need not be here to have them.

    A CPU has them where it emulates FP8.
    """
    if device.type != "cuda":
        return None if emulates() else f"a {device.type.upper()} has no products of them"
    if not hasattr(functional, "scaled_mm"):
        return f"torch {torch.__version__} has no product of them"
    if torch.cuda.is_available():
        capability = torch.cuda.get_device_capability(device)
        if capability < _LEAST_CAPABILITY:
            card, (major, minor) = torch.cuda.get_device_name(device), capability
            return f"{card} has compute capability {major}.{minor}, and 9.0 is the least"
    return None


def wrong_block_products(device: torch.device) -> str | None:
    """Why a GPU's products of blocks, the library's and the kernel's, do not do, if so."""
    if device.type != "cuda":
        return None
    try:
        x = torch.randn(_TRIAL, _TRIAL, device=device, dtype=torch.bfloat16)
        weight = torch.randn(_TRIAL, _TRIAL, dtype=torch.float32, device=device).to(E4M3)
        sides = _TRIAL // BLOCK
        scales = torch.rand(sides, sides, dtype=torch.float32, device=device) + 0.5
        expected = functional.linear(widened_groups(*quantise_groups(x)), widened(weight, scales))
        ends = torch.full((1,), _TRIAL, dtype=torch.int32, device=device)
        of_groups = multiply_block_groups(x, weight[None], scales[None], ends)
        for found in (multiply_blocks(x, weight, scales), of_groups):
            if not (found.float() - expected).norm() < _TOLERANCE * expected.norm():
                return "this GPU's products are not right"
    except (RuntimeError, AttributeError, ValueError) as error:
        return f"{str(error).strip().partition(chr(10))[0]:.200}"
    return None


def quantise_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise x [..., K] into e4m3 [..., K] and scales [..., K / 128] float32, its factors.

    The last group is shorter where K is no multiple of 128.
    """
    wide = x.float()
    if x.shape[-1] % BLOCK:
        wide = functional.pad(wide, (0, -x.shape[-1] % BLOCK))
    wide = wide.unflatten(-1, (-1, BLOCK))
    largest = wide.new_full((), _LARGEST)  # by a plain number a GPU divides less precisely
    scales = wide.abs().amax(dim=-1).clamp(min=LEAST) / largest
    numbers = (wide / scales.unsqueeze(-1)).to(E4M3).flatten(-2)
    return numbers[..., : x.shape[-1]], scales


def quantise_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight [..., N, K], whose sizes are multiples of 128: its numbers in e4m3, and
    scales [..., N / 128, K / 128]."""
    blocks = weight.float().unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    scales = blocks.abs().amax(dim=(-3, -1), keepdim=True).clamp(min=LEAST) / _LARGEST
    return (blocks / scales).to(E4M3).view(weight.shape), scales.squeeze(-1).squeeze(-2)


def widened_groups(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What `quantise_groups` made, in float32."""
    across = torch.arange(numbers.shape[-1], device=numbers.device) // BLOCK
    return numbers.float() * scales[..., across]


def widened(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """weight: [N, K] in e4m3, scales: [N / 128, K / 128] -> [N, K] in float32."""
    down, across = (torch.arange(size, device=weight.device) // BLOCK for size in weight.shape)
    return weight.float() * scales[down][:, across]


def multiply_blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply x [..., K] by a weight [N, K] in e4m3 with scales [N / 128, K / 128]: [..., N]."""
    numbers, own = torch.ops.sharegen.quantise_groups(x, True)
    if weight.is_cuda:
        out = torch.ops.sharegen.block_product(numbers, own, weight, scales)
    else:
        out = functional.linear(widened_groups(numbers, own.t()), widened(weight, scales))
    out = out[: prod(x.shape[:-1])].view(*x.shape[:-1], len(weight))
    if bias is not None:
        out = out + bias
    return out.to(x.dtype)


@torch.library.custom_op("sharegen::quantise_groups", mutates_args=())
def _quantise_groups(x: torch.Tensor, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantise_groups` of x [..., K] as [T, K], on a GPU by one kernel.

    by_columns: as the library's product takes it, the scales as [K / 128, T] and rows in fours.
    """
    return as_products_take_it(x.flatten(0, -2), None, by_columns)


@_quantise_groups.register_fake
def _(x: torch.Tensor, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return made_of(x, by_columns)


# One node of a layer that is compiled, which our passes (graph_passes.py) see.
QUANTISE_GROUPS = (torch.ops.sharegen.quantise_groups, torch.ops.sharegen.quantise_groups.default)
"""What nodes of a compiled layer's graph that call it have as their target."""


def as_products_take_it(
    x: torch.Tensor, up: torch.Tensor | None, by_columns: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of rows x [T, K], or of silu(x) * up."""
    rows = len(x) + (-len(x) % _FOURS if by_columns else 0)
    if x.is_cuda:
        from sharegen.kernels.fp8_groups import groups_of  # which needs Triton

        made = groups_of(x, LEAST, up=up, by_columns=by_columns, rows=rows)
        return made.numbers, made.scales
    if up is not None:
        x = functional.silu(x) * up
    numbers, scales = quantise_groups(functional.pad(x, (0, 0, 0, rows - len(x))))
    return numbers.contiguous(), scales.t().contiguous() if by_columns else scales


def made_of(x: torch.Tensor, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Tensors like those, without numbers."""
    rows, groups = prod(x.shape[:-1]), -(-x.shape[-1] // BLOCK)
    if by_columns:
        rows = rows + -rows % _FOURS
    scales = x.new_empty((groups, rows) if by_columns else (rows, groups), dtype=torch.float32)
    return x.new_empty(rows, x.shape[-1], dtype=E4M3), scales


def scaled_product(
    rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The library's product of e4m3 by blocks, in bfloat16 [T, N].

    Args:
        rows: [T, K].
        own: [K / 128, T], the scales of rows, which the library wants by columns.
        weight, scales: [N, K] and [N / 128, K / 128], of which the library wants each row of
            scales to take room for a multiple of four.
    """
    kinds = functional.ScalingType
    more = -scales.shape[1] % _FOURS
    return functional.scaled_mm(
        rows,
        weight.t(),
        own.t(),
        kinds.BlockWise1x128,
        (functional.pad(scales, (0, more)) if more else scales).t(),
        kinds.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )


# The compiler has it as it is, for the library refuses tensors that lie in another way.
_block_product = torch.library.custom_op("sharegen::block_product", mutates_args=())(scaled_product)


@_block_product.register_fake
def _(
    rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[0], dtype=torch.bfloat16)


BLOCK_PRODUCT = (torch.ops.sharegen.block_product, torch.ops.sharegen.block_product.default)
"""What calls it: as it is written here, and as the dispatcher names it."""


def multiply_block_groups(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
    which: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows that lie group by group, each group by a weight of its own: [T, N] as x.

    Args:
        x: [R, K].
        weight, scales: [G, N, K] in e4m3, and [G, N / 128, K / 128].
        ends: [G] the row after each group's last, int32.
        which: [T] the row of x that each row is; by default they are x's in their order.
    """
    count = len(x) if which is None else len(which)
    if weight.is_meta:  # there are no ends
        return x.new_empty(count, weight.shape[1])
    if weight.is_cuda:
        numbers, own = torch.ops.sharegen.quantise_groups(x, False)
        out: torch.Tensor = torch.ops.sharegen.block_groups(
            numbers, own, which, weight, scales, ends
        )
        return out.to(x.dtype)
    rows = x if which is None else x[which]
    products = []
    start = 0
    for group, end in enumerate(ends.tolist()):
        products.append(multiply_blocks(rows[start:end], weight[group], scales[group]))
        start = end
    return torch.cat(products)


@torch.library.custom_op("sharegen::block_groups", mutates_args=())
def _block_groups(
    numbers: torch.Tensor,
    own: torch.Tensor,
    which: torch.Tensor | None,
    weight: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
) -> torch.Tensor:
    """The kernel's product (`kernels/block_groups.py`) of rows that are quantised, in bfloat16."""
    from sharegen.kernels.block_groups import block_groups  # which needs Triton

    return block_groups(numbers, own, which, weight, scales, ends)


@_block_groups.register_fake
def _(
    numbers: torch.Tensor,
    own: torch.Tensor,
    which: torch.Tensor | None,
    weight: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
) -> torch.Tensor:
    count = numbers.shape[0] if which is None else which.shape[0]
    return numbers.new_empty(count, weight.shape[1], dtype=torch.bfloat16)


class FP8BlockLinear(nn.Module):
    """A linear layer with its weight in e4m3, [N, K], and `weight_scale`, [N / 128, K / 128]."""

    def __init__(
        self, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.weight_scale = nn.Parameter(weight_scale, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply_blocks(x, self.weight, self.weight_scale, self.bias)


def are_of_blocks(weight: torch.Tensor, scales: torch.Tensor) -> bool:
    """Whether scales are a block's rather than a row's."""
    return scales.shape[-2] != weight.shape[-2]
