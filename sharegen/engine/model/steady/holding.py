"""Has a model's linear layers computed by the operator whose rows do not depend on others.

Compiled code gets it in the compiler's graph, after the passes that look for linear layers
(`compile/graph_passes.py`). What runs uncompiled gets it here: modules that are linear layers, and
those that call `linear` with a weight of their own, as the routers of experts do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.steady.products import steady_for, steady_product

_LINEAR = torch.nn.functional.linear
_HELD = "sharegen_held"


class _Steadily(TorchFunctionMode):
    """Inside, `linear` is the operator."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _LINEAR:
            return _held(*args, **kwargs)
        return func(*args, **kwargs)


def _held(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        out: torch.Tensor = steady_product(input, weight, bias)
    return out


def hold_products(model: LoadedModel, rows: Sequence[int]) -> None:
    """Let its linear layers be computed so until it is released, for these numbers of rows.

    It is done after projections are fused, and before anything is compiled.
    """
    steady_for(rows)
    for module in model.model.modules():
        if _multiplies(module) and not hasattr(module.forward, _HELD):
            before = vars(module).get("forward")
            module.forward = _steadily(module.forward)
            model.on_release(_let_go, module, before)
    model.steady = True
    if model.ranks is not None:
        model.ranks.multiply_by(steady_product)


def _let_go(module: nn.Module, before: Any) -> None:
    del module.forward
    if before is not None:
        module.forward = before


def _multiplies(module: nn.Module) -> bool:
    """Whether its own forward calls `linear`."""
    forward = getattr(type(module).forward, "__code__", None)
    own = any(parameter.dim() == 2 for parameter in module.parameters(recurse=False))
    return own and forward is not None and "linear" in forward.co_names


def _steadily(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same forward, whose products are the operator's where it runs uncompiled."""

    def steady(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        with _Steadily():
            return forward(*args, **kwargs)

    setattr(steady, _HELD, True)
    return steady


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
