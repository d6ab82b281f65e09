"""A LoRA adapter becomes part of a model's weights: where it lies, and how it is merged.

peft merges in place. An embedding and an output head that share one weight would both get what the
adapter says of either, so weights that are shared are parted first. What peft warns of while it
reads an adapter is told or refused, for a merged model does not show it.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.common.extras import install
from sharegen.engine.model.checkpoint.source import Source, explained, locate
from sharegen.errors import ModelError

_MISSING = "Found missing adapter keys"
_TIED = "Model has `tie_word_embeddings=True`"
_TOLD = (UserWarning, RuntimeWarning)
_OF_ADAPTERS = ("lora_", "hada_", "lokr_", "ia3_")


def locate_adapter(adapter: str | os.PathLike[str]) -> Source:
    """Where a LoRA adapter lies. Raises ModelError."""
    source = locate(adapter)
    if source.folder is not None and not (source.folder / "adapter_config.json").is_file():
        raise ModelError(f"adapter folder {source.name} has no adapter_config.json")
    return source


def merge_adapter(model: PreTrainedModel, adapter: Source) -> PreTrainedModel:
    """Merge a LoRA adapter into the model's weights.

    Raises ModelError for what is no adapter of this model, or none that weights can hold.
    """
    if torch.distributed.is_available():  # peft takes it for imported; `lean_imports.py` leaves it
        importlib.import_module("torch.distributed.tensor")
    try:
        from peft import PeftModel
    except ImportError:
        raise ModelError(f"an adapter needs peft: {install('adapter')}") from None
    with explained(adapter, "adapter"):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            wrapped: Any = PeftModel.from_pretrained(model, adapter.name, **adapter.place)
        lines = _worth_a_warning(seen, adapter)
        _check(wrapped, adapter)
        _part_shared_weights(wrapped)
        merged: PreTrainedModel = wrapped.merge_and_unload()
    for line in lines:
        warnings.warn(f"adapter {adapter.name}: {line}", stacklevel=2)
    _note_parted(merged)
    return merged.eval()


def without_wrapper(model: Any) -> Any:
    """The transformers model that a PeftModel changes layers of, with these; others as they are.

    Raises ModelError for a PeftModel that does more than that.
    """
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return model
    config = model.peft_config[model.active_adapter]
    if not _is_change_of_weights(model) or getattr(config, "alora_invocation_tokens", None):
        raise ModelError(
            f"the PeftModel is of the kind {_kind(model)}, which is no change of weights: give a "
            "LoRA"
        )
    return model.get_base_model()


def _is_change_of_weights(wrapped: Any) -> bool:
    from peft import PeftType
    from peft.tuners.tuners_utils import BaseTuner

    kind = wrapped.peft_config[wrapped.active_adapter].peft_type
    return isinstance(wrapped.base_model, BaseTuner) and kind != PeftType.XLORA


def _kind(wrapped: Any) -> str:
    config = wrapped.peft_config[wrapped.active_adapter]
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    return f"activated {kind}" if getattr(config, "alora_invocation_tokens", None) else kind


def _worth_a_warning(seen: Iterable[warnings.WarningMessage], adapter: Source) -> list[str]:
    """What peft warned of, each in a line. Raises ModelError where the adapter lacks weights."""
    lines = [
        " ".join(str(warning.message).split())
        for warning in seen
        if "peft" in warning.filename
        and issubclass(warning.category, (UserWarning, RuntimeWarning))
    ]
    if any(line.startswith(_MISSING) for line in lines):
        raise ModelError(
            f"adapter {adapter.name} lacks weights that its adapter_config.json names: it is "
            "broken, or of another model"
        )
    return [line for line in lines if not line.startswith(_TIED)]  # which is what parting is for


def _check(wrapped: Any, adapter: Source) -> None:
    """Raise ModelError for an adapter that weights cannot hold, or with weights of other layers."""
    from peft.utils import get_peft_model_state_dict, load_peft_weights

    config = wrapped.peft_config["default"]
    if not _is_change_of_weights(wrapped):
        raise ModelError(
            f"adapter {adapter.name} is of the kind {_kind(wrapped)}, which is no change of "
            "weights: give a LoRA adapter"
        )
    if getattr(config, "layer_replication", None):
        raise ModelError(
            f"adapter {adapter.name} repeats layers (layer_replication): merge it with peft, save "
            "the model and give that"
        )
    own = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    stored = set(load_peft_weights(adapter.name, device="cpu", **adapter.place))
    other = [key for key in sorted(stored - own) if any(part in key for part in _OF_ADAPTERS)]
    if other and own <= stored:  # else peft knows the stored names by others
        raise ModelError(
            f"adapter {adapter.name} has {len(other)} weights for parts that the model lacks, such "
            f"as {other[0]}: it is of another model"
        )


def _part_shared_weights(wrapped: nn.Module) -> None:
    """Give each layer that an adapter changes a weight of its own, where another has it, too."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in wrapped.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append((module, name))
    changed = {
        id(module.get_base_layer())
        for module in wrapped.modules()
        if isinstance(module, BaseTunerLayer)
    }
    for shared in owners.values():
        for module, name in shared if len(shared) > 1 else ():
            if id(module) in changed:
                weight = getattr(module, name)
                own = nn.Parameter(weight.detach().clone(), requires_grad=False)
                setattr(module, name, own)


def _note_parted(model: PreTrainedModel) -> None:
    """Say in the config where embedding and head are no longer one, so that nobody ties them."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if getattr(head, "weight", None) is getattr(embedding, "weight", None):
        return
    for config in (model.config, model.config.get_text_config()):
        if getattr(config, "tie_word_embeddings", False):
            config.tie_word_embeddings = False
