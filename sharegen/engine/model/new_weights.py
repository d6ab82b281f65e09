"""Another checkpoint's weights for a model that an engine has.

They are read and compared as a whole before the first is put in its place, so that what does not
fit changes nothing. They go where the old ones lie: compiled code and CUDA graphs read them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import load_weights, stored_quantization
from sharegen.engine.model.fingerprint import fingerprint_of_source
from sharegen.engine.model.load import eos_token_ids
from sharegen.engine.model.loaded import LoadedModel
from sharegen.errors import ModelError

_OF_NO_MATTER = (
    "_name_or_path", "architectures", "bos_token_id", "dtype", "eos_token_id", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip
"""What a config says that changes nothing here; ends of texts are compared by themselves."""


class NewWeights:
    """The weights in a folder, on the host, each with the one whose place it is to take.

    Raises ModelError, by name, for a model whose weights do not change in place, for a folder that
    cannot be read, and where config, ends of texts, names, shapes or dtypes differ.
    """

    def __init__(self, loaded: LoadedModel, folder: str | os.PathLike[str]) -> None:
        _refuse_kind(loaded)
        source = locate(folder)
        config = load_config(source)
        if stored_quantization(source, config) is not None:
            raise ModelError(f"model {source.name} is quantised: weights change to plain ones")
        _refuse_other_config(source.name, loaded.config, config)
        module = load_weights(source, config, loaded.dtype, torch.device("cpu"))
        if eos_token_ids(module) != loaded.eos_token_ids:
            raise ModelError(f"model {source.name} ends its texts with other tokens")
        self._model = loaded
        self._fingerprint = fingerprint_of_source(source)
        own = loaded.weights.by_name() | dict(_kept_buffers(loaded.model))
        new = dict(_parameters(module)) | dict(_kept_buffers(module))
        _refuse_other_kinds(source.name, own, new)
        self._pairs = [(own[name], new[name]) for name in own]

    @torch.no_grad()
    def put(self) -> None:
        """Put them in their places; whoever kept what was computed with the old ones forgets it."""
        for own, new in self._pairs:
            own.data.copy_(new.data)
        self._model.fingerprint = self._fingerprint


def _refuse_kind(loaded: LoadedModel) -> None:
    what = None
    if loaded.ranks is not None:
        what = "is cut among GPUs"
    elif loaded.lent is not None:
        what = "was passed in as a module, whose owner changes it"
    elif any(
        type(weight.data) is not torch.Tensor
        or weight.element_size() < 2
        or not weight.is_floating_point()
        for weight in loaded.weights.by_name().values()
    ):
        what = "is quantised"
    if what is not None:
        raise ModelError(f"the model {what}: its weights do not change in place: begin anew")


def _refuse_other_config(name: str, own: Any, new: Any) -> None:
    before, after = _said(own), _said(new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            raise ModelError(
                f"model {name} has another config: {key} is {after.get(key)!r:.80}, and was "
                f"{before.get(key)!r:.80}"
            )


def _said(config: Any) -> dict[str, Any]:
    """What a config says, by name; parts of it by `part.name`."""
    found: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        if key in _OF_NO_MATTER or key.startswith("_attn"):
            continue
        if isinstance(value, dict):
            found |= {
                f"{key}.{inner}": each for inner, each in value.items()
                if inner not in _OF_NO_MATTER
            }  # fmt: skip
        else:
            found[key] = value
    return found


def _parameters(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, part in module.named_modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                yield ".".join(filter(None, (path, name))), weight


def _kept_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that a checkpoint has."""
    for path, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set:
                yield ".".join(filter(None, (path, name))), buffer


def _refuse_other_kinds(
    name: str, own: dict[str, torch.Tensor], new: dict[str, torch.Tensor]
) -> None:
    other = sorted(own.keys() ^ new.keys())
    if other:
        has = "has" if other[0] in new else "has no"
        raise ModelError(f"model {name} is another one: it {has} {other[0]}")
    for path, weight in own.items():
        found = new[path]
        if (found.shape, found.dtype) != (weight.shape, weight.dtype):
            raise ModelError(
                f"model {name} is another one: {path} is {_kind(found)}, and was {_kind(weight)}"
            )


def _kind(weight: torch.Tensor) -> str:
    return f"{str(weight.dtype).removeprefix('torch.')} {list(weight.shape)}"
