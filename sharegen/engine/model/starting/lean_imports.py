"""transformers as a job needs it, without what it only names.

Losses for images and assisted generation bring SciPy and scikit-learn: their functions are imported
when somebody calls them. What images need, with torchvision and this with the compiler, comes with
a name for types, and is imported when somebody asks for another.

`transformers.modeling_utils` brings torch's compiler (its decorators, one context manager) and
DTensors (with SymPy), a third of all that is imported. Where nothing is compiled, as on a CPU, and
one process has the whole model, steps use none of them. That is for processes of our own, the
command's and the workers'; a user may compile or shard after us, and his process gets them whole.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Unpack

from sharegen.engine.model.starting.kept_names import keep_names
from sharegen.engine.model.starting.stand_ins import (
    StandIn,
    called_later,
    for_compiler,
    for_symbols,
)

_MODELS = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
)  # what a model's own code begins with
_ASKERS = ("transformers.loss.loss_utils", "transformers.generation.candidate_generator")
"""They import functions that they rarely call."""


def import_transformers(compiles: bool = False, shards: bool = False) -> None:
    """Import what loading any model begins with; whole, where it does not go without the rest.

    compiles: whether the compiler will be needed. shards: whether DTensors may be, in this process.
    """
    if _MODELS[0] in sys.modules:
        return
    keep_names()
    import torch
    import transformers.utils

    rarely = [*_losses(transformers.__path__), "sklearn.metrics"]
    before = set(sys.modules)
    standing = _images()
    if not compiles:
        standing += for_compiler()
    if not shards:
        standing += for_symbols()
    try:
        with called_later(rarely, _ASKERS), nullcontext() if shards else _without_shards(torch):
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


def _images() -> list[StandIn]:
    """For what handles images, as long as it is asked for types alone: by models' code, which has
    Python's own from there, and by what checks configs.
    """
    known: dict[str, dict[str, Any]] = {
        "transformers.processing_utils": {"Unpack": Unpack},
        "transformers.video_utils": {"VideoMetadataType": Any},
    }
    pillow = sys.modules.get("PIL.Image")  # which comes with transformers, where it is installed
    if pillow is not None:
        known["transformers.image_utils"] = {"PILImageResampling": pillow.Resampling}
    askers = {"transformers.video_utils": ["transformers.utils.type_validators"]}
    return [
        StandIn(name, types, askers.get(name))
        for name, types in known.items()
        if name not in sys.modules
    ]


def _losses(folders: Iterable[str]) -> list[str]:
    """transformers' modules with losses, without the one that knows all of them."""
    files = [file for folder in folders for file in Path(folder).glob("loss/loss_*.py")]
    return [f"transformers.loss.{file.stem}" for file in files if file.stem != "loss_utils"]


@contextmanager
def _without_shards(torch: Any) -> Iterator[None]:
    """Inside, torch says that it cannot shard."""
    own, torch.distributed.is_available = torch.distributed.is_available, _is_not_available
    try:
        yield
    finally:
        torch.distributed.is_available = own


def _is_not_available() -> bool:
    return False
