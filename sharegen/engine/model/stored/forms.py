"""In which form a checkpoint has its weights, by its `quantization_config`.

Kinds of a method that are not known are refused by name: read as another kind, they would be
numbers of no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.fp8.blocks import BLOCK
from sharegen.engine.model.fp8.products import E4M3
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS, groups_of, mapping, several
from sharegen.engine.model.stored.four_bits import AWQ, GPTQ, PackedRows
from sharegen.engine.model.stored.scaled_floats import MXFP4, FP8Blocks, FP8Rows
from sharegen.engine.model.stored.unread import Unread
from sharegen.errors import ModelError

Integers = GPTQ | AWQ | PackedRows
Form = Integers | FP8Blocks | FP8Rows | MXFP4


@dataclass(frozen=True)
class Kept:
    """A form that is multiplied as it is stored, where that is asked for, and its name."""

    form: type[FP8Blocks | MXFP4]
    name: str


KEPT = {BLOCKS: Kept(FP8Blocks, "FP8 by blocks"), FP4: Kept(MXFP4, "MXFP4")}
"""The form that each quantization of this kind asks for."""

_BITS = (2, 4, 8)
_BYTES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8, torch.int32)
_AWQ_LAYOUTS = (None, "gemm")
_GPTQ_LAYOUTS = (None, "", "gptq", "gptq_v2")


def form_of(name: str, settings: Mapping[str, Any]) -> Form | None:
    """How the weights of a checkpoint are stored; None where that is none of these methods.

    name: of the model; settings: its `quantization_config`. Raises ModelError for another kind of
    such a method.
    """
    method = settings.get("quant_method")
    if method == "gptq":
        return _gptq(name, settings)
    if method == "awq":
        return _awq(name, settings)
    if method == "fp8" and settings.get("weight_block_size") is not None:
        return _fp8_blocks(name, settings)
    if method == "mxfp4":
        return MXFP4()
    if method == "compressed-tensors":
        return _compressed(name, settings)
    return None


def as_numbers(
    model: str, form: Form, tensors: dict[str, Unread], dtype: torch.dtype
) -> dict[str, Unread]:
    """The tensors that the checkpoint would have if it were not quantised; nothing is read yet.

    dtype: of the weights that were. Raises ModelError where parts of a weight are missing or have
    other shapes.
    """
    rest = dict(tensors)
    made = dict(_weights(model, form, rest, dtype))
    if not made:
        raise ModelError(
            f"model {model} says that it is {form}, and has no such weights: its config.json is "
            "another model's"
        )
    left = sorted(name for name, tensor in rest.items() if tensor.dtype in _BYTES)
    if left:
        raise ModelError(
            f"model {model}: {left[0]} is quantised, and what it is scaled by is missing: the "
            "checkpoint is broken"
        )
    return rest | made


def _weights(
    model: str, form: Form, rest: dict[str, Unread], dtype: torch.dtype
) -> Iterator[tuple[str, Unread]]:
    """Take what belongs to a weight out of the rest, weight by weight."""
    names = list(rest)
    if isinstance(form, FP8Blocks | FP8Rows):
        for name in names:
            weight = name.removesuffix(form.scale)
            if name.endswith(f"weight{form.scale}") and weight not in rest:
                raise ModelError(
                    f"model {model}: {weight} is missing beside {name}: the checkpoint is broken"
                )
            if name.endswith(form.scale) and weight in rest:
                parts = {"scale": rest.pop(name), "weight": rest.pop(weight)}
                kind = parts["weight"].dtype
                if kind != E4M3:
                    raise _refusal(model, f"{weight} has a scale, and is {kind}, not {E4M3}")
                yield weight, Unread(form.weight(model, weight, parts, dtype))
    elif isinstance(form, MXFP4):
        for name in names:
            weight = name.removesuffix("_blocks")
            if name.endswith("_blocks") and f"{weight}_scales" in rest:
                parts = {"blocks": rest.pop(name), "scales": rest.pop(f"{weight}_scales")}
                made: Any = Unread(form.weight(model, weight, parts, dtype)).transpose(-2, -1)
                yield weight, made
    else:
        for name in names:
            if name.endswith(f".{form.suffix}"):
                prefix = name.removesuffix(form.suffix)
                parts = _parts(model, form, prefix, rest)
                yield f"{prefix}weight", Unread(form.weight(model, prefix, parts, dtype))


def _parts(model: str, form: Integers, prefix: str, rest: dict[str, Unread]) -> dict[str, Unread]:
    parts = {name: rest.pop(f"{prefix}{name}", None) for name in (form.suffix, *form.parts)}
    for name, part in parts.items():
        if part is None:
            raise ModelError(
                f"model {model}: {prefix}{name} is missing beside {prefix}{form.suffix}: the "
                "checkpoint is broken"
            )
    parts |= {name: rest.pop(f"{prefix}{name}", None) for name in form.optional}
    return {name: part for name, part in parts.items() if part is not None}


def _gptq(name: str, settings: Mapping[str, Any]) -> GPTQ:
    bits, layout = settings.get("bits"), settings.get("checkpoint_format")
    if bits not in _BITS:
        raise _refusal(name, f"GPTQ of {bits} bits")
    if layout not in _GPTQ_LAYOUTS:
        raise _refusal(name, f"GPTQ in the layout {layout}")
    # "-:" names what is left as it is, which shows in what the checkpoint has of it.
    if any(not str(layers).startswith("-:") for layers in mapping(name, settings, "dynamic")):
        raise _refusal(name, "GPTQ with other settings for some layers (dynamic)")
    if settings.get("pack_dtype", "int32") != "int32":
        raise _refusal(name, f"GPTQ packed in {settings['pack_dtype']}")
    return GPTQ(bits, _size(name, settings.get("group_size")), layout != "gptq_v2")


def _awq(name: str, settings: Mapping[str, Any]) -> AWQ:
    bits = settings.get("bits", settings.get("w_bit"))
    layout = settings.get("version", settings.get("checkpoint_format"))
    if bits != 4:
        raise _refusal(name, f"AWQ of {bits} bits")
    if layout not in _AWQ_LAYOUTS and str(layout).lower() != "gemm":
        raise _refusal(name, f"AWQ in the layout {layout}")
    return AWQ(_size(name, settings.get("group_size", settings.get("q_group_size"))))


def _fp8_blocks(name: str, settings: Mapping[str, Any]) -> FP8Blocks:
    block = list(several(name, settings, "weight_block_size"))
    if block != [BLOCK, BLOCK]:
        raise _refusal(name, f"FP8 with scales of blocks of {block}")
    if settings.get("activation_scheme", "dynamic") != "dynamic":
        raise _refusal(name, "FP8 by blocks with fixed scales of activations")
    return FP8Blocks("_scale_inv")


def _compressed(name: str, settings: Mapping[str, Any]) -> FP8Blocks | PackedRows | None:
    groups = groups_of(name, settings)
    kinds = [mapping(name, group, "weights") for group in groups]
    if not kinds:
        return None
    kind = kinds[0]
    if any(_said(other) != _said(kind) for other in kinds[1:]):
        raise _refusal(name, "compressed-tensors, several kinds of layers")
    if mapping(name, settings, "sparsity_config").get("format", "dense") != "dense":
        raise _refusal(name, "compressed-tensors, sparse")
    if settings.get("transform_config"):
        raise _refusal(name, "compressed-tensors, with rotations of activations")
    bits, strategy = kind.get("num_bits"), kind.get("strategy")
    if kind.get("type") == "float" and bits == 8 and strategy == "block":
        block = list(several(name, kind, "block_structure"))
        if block != [BLOCK, BLOCK]:
            raise _refusal(name, f"compressed-tensors, FP8 with scales of blocks of {block}")
        activations = mapping(name, groups[0], "input_activations")
        if activations and not activations.get("dynamic"):
            raise _refusal(name, "FP8 by blocks with fixed scales of activations")
        return FP8Blocks("_scale")
    if (kind.get("type", "int"), settings.get("format")) != ("int", "pack-quantized"):
        return None
    if bits not in _BITS or strategy not in ("group", "channel"):
        raise _refusal(name, f"compressed-tensors of {bits} bits, {strategy} scales")
    if any(group.get("input_activations") for group in groups):
        raise _refusal(name, f"compressed-tensors of {bits} bits with quantised activations")
    size = kind.get("group_size") if strategy == "group" else None
    return PackedRows(bits, _size(name, size), bool(kind.get("symmetric", True)))


def _said(kind: Mapping[str, Any]) -> list[Any]:
    return [
        kind.get(key)
        for key in ("type", "num_bits", "strategy", "group_size", "symmetric", "block_structure")
    ]


def _size(name: str, group_size: Any) -> int | None:
    if group_size in (None, -1):
        return None
    if not isinstance(group_size, int) or group_size < 1:
        raise _refusal(name, f"groups of {group_size!r:.20}")
    return group_size


def _refusal(name: str, kind: str) -> ModelError:
    return ModelError(
        f"model {name} is quantised in a way that is not known here ({kind}): give its checkpoint "
        "in bfloat16, or another quantisation of it (docs/reference/models.md names them)"
    )
