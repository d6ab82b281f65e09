"""What in a model gives a row bits that depend on the other rows, as far as trials show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from sharegen.engine.model.fp8.blocks import are_of_blocks
from sharegen.engine.model.fp8.experts import is_known, multiply_experts, projections
from sharegen.engine.model.fp8.products import E4M3, multiply
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.steady.holding import not_held
from sharegen.engine.model.steady.products import tried

_LINES = 61  # different rows, which come again and again
_MORE_LINES = 487  # of a product, where most rows are twice as many
_COUNTS = (0, 1, 2, 7, 8, 16, 33, 61, 64, 100)  # rows of an expert, of one after another
_MANY = 8  # times as many, for which a library has other tiles
_MOST_BYTES = 1 << 29  # of a result

Product = Callable[[torch.Tensor], torch.Tensor]
"""Returns [T, N] of x [T, K]."""

Groups = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns [T, N] of x [T, K], whose rows lie expert by expert, and of their ends [experts]."""


@torch.inference_mode()
def not_steady(model: LoadedModel, rows: Sequence[int]) -> Iterator[str]:
    """Yield in words what does not hold; rows: the numbers of rows that forwards have."""
    for shape, ways in tried().items():
        if ways.differing:
            yield f"linear layers {shape}, with {_named(ways.differing)} rows"
    for name in not_held(model):
        yield f"{name}, which multiplies in a way of its own"
    seen: set[object] = set()
    for module in model.model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.dtype is E4M3 and weight.dim() == 2:
            if weight.shape not in seen and not _is_held(module):
                differing = rows_that_differ(_fp8_product(module), weight.shape, rows, model)
                if differing:
                    yield f"FP8 layers of {tuple(weight.shape)}, with {_named(differing)} rows"
            seen.add(weight.shape)
        elif is_known(module):
            for name in projections(module):
                key = type(module), getattr(module, name).shape
                if key not in seen and not groups_are_steady(*_groups(module, name), model):
                    yield f"the experts' {name}"
                seen.add(key)


def rows_that_differ(
    product: Product, shape: Sequence[int], rows: Sequence[int], model: LoadedModel
) -> list[int]:
    """The numbers of rows with which a row has other bits than with the largest of them.

    shape: (N, K) of the weight.
    """
    width, size = shape
    rows = [count for count in rows if 2 * count * width <= _MOST_BYTES] or list(rows[:1])
    lines = _MORE_LINES if rows[-1] > 2 * _MORE_LINES else _LINES
    which = torch.arange(rows[-1] + lines, device=model.device) % lines
    x = _drawn(lines, size, model)[which]
    expected = product(x[: rows[-1]])[:lines]

    def differs(count: int) -> bool:
        """Whether it does for any line, which come so many at a time, or all several times."""
        starts = range(0, lines, count)
        return not all(
            torch.equal(product(x[at : at + count]), expected[which[at : at + count]])
            for at in starts
        )

    return [count for count in rows if differs(count)]


def groups_are_steady(groups: Groups, experts: int, size: int, model: LoadedModel) -> bool:
    """Whether a row of an expert has the same bits however many rows each of them has, and all."""
    x = _drawn(_LINES, size, model)
    ends = torch.arange(1, experts + 1, device=model.device) * _LINES
    expected = groups(x.repeat(experts, 1), ends.int())
    for turn, times in ((0, 1), (1, 1), (0, _MANY)):
        counts = torch.tensor([_COUNTS[(i + turn) % len(_COUNTS)] for i in range(experts)]) * times
        line = torch.cat([torch.arange(int(count)) % _LINES for count in counts])
        at = torch.arange(experts).repeat_interleave(counts) * _LINES + line
        found = groups(x[line.to(x.device)], counts.cumsum(0).int().to(x.device))
        if not torch.equal(found, expected[at.to(x.device)]):
            return False
    return True


def _fp8_product(module: nn.Module) -> Product:
    weight, scales = module.get_parameter("weight"), module.get_parameter("weight_scale")
    return lambda x: multiply(x, weight, scales, None)


def _is_held(module: nn.Module) -> bool:
    """Whether it is FP8 by blocks, whose products were tried with those of linear layers."""
    return are_of_blocks(module.get_parameter("weight"), module.get_parameter("weight_scale"))


def _groups(module: nn.Module, name: str) -> tuple[Groups, int, int]:
    """How experts multiply by one of their weights, how many they are, and its inputs."""
    weight = module.get_parameter(name)
    scales = getattr(module, f"{name}_scale", None)
    if scales is not None:
        size = weight.shape[2] * (4 if weight.dtype is torch.int16 else 1)  # four numbers a word
        return (lambda x, ends: multiply_experts(x, weight, scales, ends)), len(weight), size
    by = weight if getattr(module, "is_transposed", False) else weight.transpose(1, 2)
    return (lambda x, ends: torch._grouped_mm(x, by, offs=ends)), len(by), by.shape[1]


def _drawn(lines: int, size: int, model: LoadedModel) -> torch.Tensor:
    generator = torch.Generator(model.device).manual_seed(2)
    x = torch.randn(lines, size, generator=generator, dtype=torch.float32, device=model.device)
    return x.to(model.dtype)


def _named(rows: Sequence[int]) -> str:
    return ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
