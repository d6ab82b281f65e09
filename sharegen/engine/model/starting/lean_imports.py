"""transformers as a job needs it, without what it only names.

`transformers.modeling_utils` brings torch's compiler (its decorators, one context manager) and
DTensors (with SymPy), a third of all that is imported. Where nothing is compiled, as on a CPU, and
one process has the whole model, steps use none of them. Nor has a job losses, assisted generation
and images, which bring SciPy, scikit-learn and torchvision, with the compiler again. This is for
processes of our own, the command's and the workers'; in a user's own process, who may compile or
shard after us, all is as ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sharegen.engine.model.starting.kept_names import keep_names
from sharegen.engine.model.starting.stand_ins import has_compiler, stand_ins, unmarked

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
    whole = compiles or has_compiler()
    standing = [] if whole else stand_ins(torch)
    try:
        with _left_out(torch, transformers, whole):
            _import_models()
    except Exception:  # a version that uses more at once: as if nothing had been tried
        for stand_in in standing:
            stand_in.leave()
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "transformers":
                del sys.modules[name]
        transformers.utils.is_torch_distributed_available.cache_clear()
        _import_models()


def _import_models() -> None:
    for name in _MODELS:
        importlib.import_module(name)


@contextmanager
def _left_out(torch: Any, transformers: Any, whole: bool) -> Iterator[None]:
    """Libraries are not found while this is open, and nothing is marked for a compiler that is not
    there.
    """
    with ExitStack() as undo:
        if not whole:
            _replace(undo, torch.compiler, "disable", unmarked)
            _replace(undo, torch.distributed, "is_available", _is_not_available)
        for name in _LIBRARIES:
            if hasattr(transformers.utils, name):
                _replace(undo, transformers.utils, name, _is_not_available)
        yield


def _replace(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _is_not_available() -> bool:
    return False
