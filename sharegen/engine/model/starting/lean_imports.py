"""transformers as a job needs it, without what it only names.

`transformers.modeling_utils` brings torch's compiler (its decorators, one context manager) and
DTensors (with SymPy), a third of all that is imported. Where nothing is compiled, as on a CPU, and
one process has the whole model, steps use neither. Nor has a job losses, assisted generation and
images, which bring SciPy, scikit-learn and torchvision, with the compiler again. This is for
processes of our own, the command's and the workers'; in a user's own process, who may compile or
shard after us, all is as ever.
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
_LIBRARIES = (
    "is_scipy_available",
    "is_sklearn_available",
    "is_torchvision_available",
    "is_torchvision_v2_available",
)  # that a job's text needs nothing of
_COMPILER = "torch._dynamo"
_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"


def import_transformers(compiles: bool = False) -> None:
    """Import what loading any model begins with; whole, where it does not go without the rest.

    compiles: whether the compiler and DTensors will be needed.
    """
    if _MODELS[0] in sys.modules:
        return
    keep_names()
    import torch
    import transformers.utils

    before = set(sys.modules)
    has_compiler = compiles or _COMPILER in sys.modules  # or somebody has it already
    stand_in = None if has_compiler else _Compiler(torch)
    try:
        with _left_out(torch, transformers, has_compiler):
            _import_models()
    except Exception:  # a version that uses more at once: as if nothing had been tried
        if stand_in is not None:
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
def _left_out(torch: Any, transformers: Any, has_compiler: bool) -> Iterator[None]:
    """Libraries are not found while this is open, and nothing is marked for a compiler that is not
    there.
    """
    with ExitStack() as undo:
        if not has_compiler:
            _replace(undo, torch.compiler, "disable", _unmarked)
            _replace(undo, torch.distributed, "is_available", _is_not_available)
        for name in _LIBRARIES:
            if hasattr(transformers.utils, name):
                _replace(undo, transformers.utils, name, _is_not_available)
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
