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
from collections.abc import Iterable, Iterator, Mapping
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
_CONFIGS = "transformers.configuration_utils"
_DTYPES = ("bfloat16", "float16", "float32", "float64")
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

    if isinstance(torch, StandIn):
        torch = torch.itself()
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


def put_off_torch() -> None:
    """Let torch be imported when something is asked of it: a tokenizer does without.

    What transformers reads a tokenizer with imports torch for its types, and reads the model's
    config for the tokenizer's class. Of the config its dtype stays a name here, and whether there
    is such an activation is asked where the model is loaded.
    """
    if "torch" in sys.modules:
        return
    keep_names()
    put_off = StandIn("torch", {name: name for name in _DTYPES}, [_CONFIGS])
    import transformers.utils  # noqa: F401

    _images()
    names = {"ACT2FN": _Activations(put_off)}
    StandIn("transformers.activations", names, ["transformers.utils.type_validators"])


class _Activations(Mapping[str, Any]):
    """transformers' activations by name; none as long as torch is put off, as without torch."""

    def __init__(self, torch: StandIn) -> None:
        self._torch = torch

    @property
    def _known(self) -> Mapping[str, Any]:
        if sys.modules.get("torch") is self._torch:
            return {}
        from transformers.activations import ACT2FN

        known: Mapping[str, Any] = ACT2FN
        return known

    def __getitem__(self, name: str) -> Any:
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


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
