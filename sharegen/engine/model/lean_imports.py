"""transformers as a process that computes on a CPU needs it, without what it only names.

`transformers.modeling_utils` brings torch's compiler (its decorators, one context manager) and
DTensors (with SymPy), a third of all that is imported. A CPU's steps use neither: nothing is
compiled there, and one process has the whole model. Nor has a job losses, which bring SciPy. This
is for processes of our own, the command's and the workers'; in a user's own process, who may
compile or shard after us, all is as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

_MODELS = "transformers.modeling_utils"
_COMPILER = "torch._dynamo"
_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"


def import_transformers() -> None:
    """Import what loading any model begins with; whole, where it does not go without the rest."""
    if _MODELS in sys.modules:
        return
    import torch
    import transformers.utils

    if _COMPILER in sys.modules:  # somebody has it already
        import transformers.modeling_utils

        return
    before = set(sys.modules)
    try:
        with _left_out(torch, transformers):
            import transformers.modeling_utils
    except Exception:  # a version that uses more at once: as if nothing had been tried
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "transformers":
                del sys.modules[name]
        transformers.utils.is_torch_distributed_available.cache_clear()
        import transformers.modeling_utils


@contextmanager
def _left_out(torch: Any, transformers: Any) -> Iterator[None]:
    """The compiler marks nothing and torch says that it has no processes, while this is open."""
    compiler: Any = ModuleType(_COMPILER)
    indexing: Any = ModuleType(_INDEXING)
    indexing.TransformGetItemToIndex = _TransformGetItemToIndex
    for name in ("allow_in_graph", "assume_constant_result", "disable"):
        setattr(compiler, name, _unmarked)
    with ExitStack() as undo:
        for name, module in ((_COMPILER, compiler), (_INDEXING, indexing)):
            sys.modules[name] = module
            undo.callback(sys.modules.pop, name, None)
        torch._dynamo = compiler
        undo.callback(delattr, torch, "_dynamo")
        _replace(undo, torch.compiler, "disable", _unmarked)
        _replace(undo, torch.distributed, "is_available", _is_not_available)
        _replace(undo, transformers.utils, "is_scipy_available", _is_not_available)
        yield


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


class _TransformGetItemToIndex:
    """The compiler's own class of that name, looked up when it is first used: in masks of SDPA."""

    def __new__(cls) -> Any:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _is_not_available() -> bool:
    return False


def _unmarked(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """A decorator of the compiler's, with or without arguments, that does nothing."""
    return _unmarked if function is None else function
