"""All tensors of a checkpoint in safetensors, none of which is read yet."""

from __future__ import annotations

import json

from safetensors import SafetensorError
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import cached_file

from sharegen.engine.model.checkpoint.source import Source
from sharegen.engine.model.stored.unread import Stored, Unread
from sharegen.errors import ModelError

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_GENERATION = "generation_config.json"


def stored_tensors(source: Source) -> dict[str, Unread]:
    """All tensors of a checkpoint, none of them read.

    Raises ModelError where they are pickled, and for a file that is cut short.
    """
    index = _file(source, _INDEX)
    names = [_WEIGHTS] if index is None else _files_of(index)
    found: dict[str, Unread] = {}
    for name in names:
        path = _file(source, name)
        if path is None and index is not None:
            raise ModelError(
                f"model {source.name} has no {name}, which its {_INDEX} names: fetch it anew"
            )
        if path is None:
            raise ModelError(
                f"model {source.name} has no {name}: several GPUs, and checkpoints that are "
                "quantised, are read from safetensors alone: AutoModelForCausalLM.from_pretrained"
                "(...).save_pretrained(FOLDER) writes them"
            )
        try:
            stored = Stored.all_of(path)
        except SafetensorError as error:
            raise ModelError(
                f"{path}: is cut short or no safetensors file ({error}): fetch it anew"
            ) from None
        found |= {key: Unread(each) for key, each in stored.items()}
    return found


def _files_of(index: str) -> list[str]:
    """The files that an index names. Raises ModelError where it names none."""
    try:
        with open(index, encoding="utf-8") as stream:
            content = json.load(stream)
    except ValueError:
        content = None
    files = content.get("weight_map") if isinstance(content, dict) else None
    names = set(files.values()) if isinstance(files, dict) else set[str]()
    if not names or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{index}: has no weight_map that names files: fetch it anew")
    return sorted(names)


def take_generation_config(model: PreTrainedModel, source: Source) -> None:
    """Give a model that was made without its folder the generation config that lies there."""
    if _file(source, _GENERATION) is not None:
        model.generation_config = GenerationConfig.from_pretrained(source.name, **source.place)


def _file(source: Source, name: str) -> str | None:
    return cached_file(
        source.name,
        name,
        **source.place,
        _raise_exceptions_for_missing_entries=False,
    )
