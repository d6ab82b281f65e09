"""Has a model's linear layers computed by the operator whose rows do not depend on others.

Compiled code gets it in the compiler's graph, after the passes that look for linear layers
(`compile/graph_passes.py`). What runs uncompiled gets it here: modules that are linear layers, and
those that call `linear` with a weight of their own, as the routers of experts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sharegen.engine.model.fp8.blocks import BLOCK_PRODUCT
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.steady.products import (
    steady_block_product,
    steady_for,
    steady_product,
)

_LINEAR = torch.nn.functional.linear
_MULTIPLYING = {"linear", "multiply_blocks"}
_HELD = "sharegen_held"


class _Steadily(TorchFunctionMode):
    """Inside, `linear` is the operator, and so is the product of FP8 by blocks."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _LINEAR:
            return _held(*args, **kwargs)
        if func in BLOCK_PRODUCT:
            with torch._C.DisableTorchFunction():
                return steady_block_product(*args, **kwargs)
        return func(*args, **kwargs)


def _held(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        out: torch.Tensor = steady_product(input, weight, bias)
    return out


def be_steady(model: LoadedModel, rows: Sequence[int]) -> None:
    """Let products be what does not depend on rows, with these numbers of rows, where compiled code
    and ranks ask for them.
    """
    steady_for(rows)
    model.steady = True
    if model.ranks is not None:
        model.ranks.multiply_by(steady_product)


def hold_products(
    model: LoadedModel, rows: Sequence[int], compiled: Iterable[nn.Module] = ()
) -> None:
    """Let linear layers be computed so until the model is released, for these numbers of rows.

    It is done after projections are fused.

    compiled: modules that need no holding, but for their mixers, which run uncompiled in prefill.
    """
    be_steady(model, rows)
    mixers = {part for mixer in model.mixers for part in mixer.module.modules()}
    done = {part for module in compiled for part in module.modules()} - mixers
    for module in model.model.modules():
        before = vars(module).get("forward")
        if _multiplies(module) and module not in done and not hasattr(before, _HELD):
            own = MethodType(_steady_forward, module)
            module.forward = own if before is None else _steadily(before)
            model.on_release(_let_go, module, before)


def _let_go(module: nn.Module, before: Any) -> None:
    del module.forward
    if before is not None:
        module.forward = before


def _multiplies(module: nn.Module) -> bool:
    """Whether its own forward calls `linear`, or multiplies by blocks."""
    forward = getattr(type(module).forward, "__code__", None)
    own = any(parameter.dim() == 2 for parameter in module.parameters(recurse=False))
    return own and forward is not None and bool(_MULTIPLYING & set(forward.co_names))


def _steady_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of its kind, whose products are the operator's where it runs uncompiled.

    It is one function for all modules, or the compiler would take each for another.
    """
    forward = type(module).forward
    if torch.compiler.is_compiling():
        return forward(module, *args, **kwargs)
    with _Steadily():
        return forward(module, *args, **kwargs)


def _steadily(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a forward that somebody else has put on a module."""

    def steady(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        with _Steadily():
            return forward(*args, **kwargs)

    setattr(steady, _HELD, True)
    return steady


setattr(_steady_forward, _HELD, True)


def not_held(model: LoadedModel) -> Iterator[str]:
    """The kinds of modules with a matrix that they multiply by in some other way, each once.

    Mixers, which have matrices for other things, are left out, and so is FP8.
    """
    mixers = {mixer.module for mixer in model.mixers}
    seen = set()
    for module in model.model.modules():
        kind = type(module)
        own = any(
            weight.dim() == 2 and min(weight.shape) > 1 and weight.dtype.itemsize > 1
            for weight in module.parameters(recurse=False)
        )
        known = _multiplies(module) or isinstance(module, nn.Embedding) or module in mixers
        if own and not known and kind not in seen:
            seen.add(kind)
            yield kind.__name__
