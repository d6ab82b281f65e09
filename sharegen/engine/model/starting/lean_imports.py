"""transformers as a process that computes on a CPU needs it, without what it only names.

`transformers.modeling_utils` brings torch's compiler (its decorators, one context manager) and
DTensors (with SymPy), a third of all that is imported. A CPU's steps use neither: nothing is
compiled there, and one process has the whole model. Nor has a job losses, which bring SciPy. This
is for processes of our own, the command's and the workers'; in a user's own process, who may
compile or shard after us, all is as ever.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sharegen.engine.model.starting.kept_names import keep_names

_MODELS = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
)  # what a model's own code begins with
_COMPILER = "torch._dynamo"
_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"


def import_transformers() -> None:
    """Import what loading any model begins with; whole, where it does not go without the rest."""
    if _MODELS[0] in sys.modules:
        return
    keep_names()
    import torch
    import transformers.utils

    if _COMPILER in sys.modules:  # somebody has it already
        _import_models()
        return
    before = set(sys.modules)
    stand_in = _Compiler(torch)
    try:
        with _left_out(torch, transformers):
            _import_models()
    except Exception:  # a version that uses more at once: as if nothing had been tried
        stand_in.leave()
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "transformers":
                del sys.modules[name]
        transformers.utils.is_torch_distributed_available.cache_clear()
        _import_models()


def _import_models() -> None:
    for name in _MODELS:
        importlib.import_module(name)


class _Compiler(ModuleType):
    """`torch._dynamo` until something is asked of it that is no mark of what it must not trace.

    Then torch's own is imported in its place. torch asks for marks with the first operation on its
    meta device, transformers with its imports.
    """

    def __init__(self, torch: Any) -> None:
        super().__init__(_COMPILER)
        self.__path__ = [os.path.join(path, "_dynamo") for path in torch.__path__]
        self._torch = torch
        for name in ("allow_in_graph", "assume_constant_result", "disable"):
            setattr(self, name, _unmarked)
        indexing: Any = ModuleType(_INDEXING)
        indexing.TransformGetItemToIndex = _TransformGetItemToIndex
        sys.modules[_INDEXING] = indexing
        sys.modules[_COMPILER] = torch._dynamo = self
        self._finder = _Submodules(self)
        sys.meta_path.insert(0, self._finder)

    def leave(self) -> None:
        """Let torch's own be imported when it is next asked for."""
        sys.modules.pop(_INDEXING, None)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
            del self._torch._dynamo
            sys.meta_path.remove(self._finder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by Python's own machinery, of any module
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(_COMPILER), name)


class _Submodules(MetaPathFinder, Loader):
    """Finds the modules of `torch._dynamo`, which comes whole in place of the stand-in."""

    def __init__(self, stand_in: _Compiler) -> None:
        self._stand_in = stand_in

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if not name.startswith(f"{_COMPILER}."):
            return None
        self._stand_in.leave()
        importlib.import_module(_COMPILER)
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]  # which came with the package
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own


@contextmanager
def _left_out(torch: Any, transformers: Any) -> Iterator[None]:
    """Nothing is marked for the compiler and nothing else found, while this is open."""
    with ExitStack() as undo:
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
        sys.modules.pop(_INDEXING, None)
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _is_not_available() -> bool:
    return False


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """A decorator of the compiler's, with or without arguments, that does nothing."""
    return _unmarked if function is None else function
