"""Checkpoints whose weights are FP8 already: which of them are taken as they are.

They are those whose scales are one a row, or one for all rows: then the products are the ones of
`fp8`, on the very numbers of the checkpoint. Any other kind is refused by name, for transformers
would widen it where its own kernels are missing, and say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sharegen.errors import ModelError

_FLOATS_OF_8 = ("fp8", "mxfp8", "modelopt", "fbgemm_fp8")  # methods that are never anything else

BLOCKS = "fp8-blocks"
"""The quantization with which weights in blocks are multiplied as they are stored."""


@dataclass(frozen=True)
class StoredFP8:
    """A checkpoint with `weight` in e4m3 and `weight_scale` for each of its linear layers.

    per_row: whether a scale is a row's, of [N, 1], or the weight's, of [1]. left_out: the layers
    that are not FP8, by their names, the last part of these, or a regular expression after "re:".
    """

    per_row: bool
    left_out: tuple[str, ...]

    def has(self, module: str) -> bool:
        """Whether the linear layer of this name is FP8."""
        return not any(_names(pattern, module) for pattern in self.left_out)


def _names(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern or module.endswith(f".{pattern}") or module.startswith(f"{pattern}.")


def stored_fp8(name: str, settings: Mapping[str, Any]) -> StoredFP8 | None:
    """How the checkpoint has its FP8 weights; None where they are quantised, but not to FP8.

    name: of the model; settings: its `quantization_config`. Raises ModelError, naming the kind,
    for FP8 that is none of ours.
    """
    method = settings.get("quant_method")
    if method == "fbgemm_fp8":
        kept = several(name, settings, "modules_to_not_convert") or ("lm_head",)
        return StoredFP8(True, tuple(map(str, kept)))
    if method == "compressed-tensors":
        return _of_compressed_tensors(name, settings)
    if method in _FLOATS_OF_8:
        block = settings.get("weight_block_size")
        kind = method if block is None else f"{method}, with scales of blocks of {block}"
        raise _refusal(name, kind)
    return None


def _of_compressed_tensors(name: str, settings: Mapping[str, Any]) -> StoredFP8 | None:
    groups = groups_of(name, settings)
    weights = [mapping(name, group, "weights") for group in groups]
    if not any((w.get("type"), w.get("num_bits")) == ("float", 8) for w in weights):
        return None
    [group, *others] = groups
    strategy = weights[0].get("strategy")
    activations = mapping(name, group, "input_activations")
    kind = f"compressed-tensors, {strategy} scales"
    if others or group.get("targets") != ["Linear"]:
        raise _refusal(name, "compressed-tensors, several kinds of layers")
    if strategy not in ("channel", "tensor"):
        raise _refusal(name, kind)
    if (activations.get("type"), activations.get("num_bits")) != ("float", 8):
        raise _refusal(name, f"{kind}, activations that are not FP8")
    ignored = several(name, settings, "ignore")
    return StoredFP8(strategy == "channel", tuple(map(str, ignored)))


def groups_of(name: str, settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The kinds of layers in compressed-tensors' settings. Raises ModelError."""
    groups = mapping(name, settings, "config_groups")
    return [group for group in groups.values() if isinstance(group, Mapping)]


def mapping(name: str, settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What settings say by that key, or nothing. Raises ModelError where it has no names."""
    found = settings.get(key)
    if found is not None and not isinstance(found, Mapping):
        raise _broken(name, key, found)
    return found or {}


def several(name: str, settings: Mapping[str, Any], key: str) -> Sequence[Any]:
    """The list that settings have by that key, or an empty one. Raises ModelError for another."""
    found = settings.get(key)
    if found is not None and (isinstance(found, str) or not isinstance(found, Sequence)):
        raise _broken(name, key, found)
    return found or ()


def _broken(name: str, key: str, found: object) -> ModelError:
    return ModelError(
        f"model {name}: {key} in the quantization_config of its config.json is {found!r:.40}: the "
        "checkpoint is broken"
    )


def _refusal(name: str, kind: str) -> ModelError:
    return ModelError(
        f"model {name} is FP8 of a kind that sharegen does not run ({kind}): give its checkpoint "
        "in bfloat16, with --quantization fp8, or one with a scale a row"
    )
