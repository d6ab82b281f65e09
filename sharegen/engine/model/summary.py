"""What was found in a model and what was made fast of it, in five lines for `--show-model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.fp8.blocks import are_of_blocks
from sharegen.engine.model.loaded import LoadedModel


@dataclass
class Optimised:
    """fused: what was made fast; left: what was not, and why. Both in words."""

    fused: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def summary(model: LoadedModel, optimised: Optimised) -> list[str]:
    """Five lines: attention, states and experts, weights, what was made fast, what was not."""
    kind = getattr(model.config.get_text_config(), "model_type", type(model.model).__name__)
    return [
        f"model: {kind}, attention: {_attention(model.layers)}",
        f"states: {_states(model)}; experts: {_experts(model.model)}",
        f"weights: {_weights(model.model)}",
        f"fused or compiled: {'; '.join(optimised.fused) or 'nothing'}",
        f"not fused or compiled: {'; '.join(optimised.left) or 'nothing'}",
    ]


def _attention(layers: Iterable[LayerSpec]) -> str:
    counts = Counter(_layer(layer) for layer in layers)
    return "; ".join(f"{_times(count, 'layer')} of {what}" for what, count in counts.items()) or (
        "none"
    )


def _layer(layer: LayerSpec) -> str:
    size = str(layer.key_size)
    if layer.value_size != layer.key_size:
        size = f"{layer.key_size} (keys) and {layer.value_size} (values)"
    found = [f"{layer.num_heads} heads on {layer.num_kv_heads} of size {size}"]
    if layer.latent is not None:
        found.append(f"latents of {layer.latent.rank}")
    if layer.window is not None:
        found.append(f"a window of {layer.window}")
    if layer.attention_chunk is not None:
        found.append(f"chunks of {layer.attention_chunk}")
    if layer.softcap is not None:
        found.append(f"a softcap of {layer.softcap:g}")
    if layer.has_sinks:
        found.append("sinks")
    return " with ".join([found[0], " and ".join(found[1:])]) if found[1:] else found[0]


def _states(model: LoadedModel) -> str:
    if not model.mixers:
        return "none"
    kinds = Counter(type(mixer.module).__name__ for mixer in model.mixers)
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"{named}, {model.state_bytes / 2**20:.2f} MiB a sequence"


def _experts(whole: nn.Module) -> str:
    """transformers has experts as one tensor a projection, or as a list of modules."""
    kinds: Counter[str] = Counter()
    for name, module in whole.named_modules():
        if name.rpartition(".")[2] == "experts":
            number = getattr(module, "num_experts", None)
            number = len(module) if isinstance(module, nn.ModuleList) else number
            kinds[f"{number or 'some'} ({type(module).__name__})"] += 1
    return ", ".join(f"{_times(n, 'layer')} of {kind}" for kind, n in kinds.items()) or "none"


def has_grouped_experts(whole: nn.Module) -> bool:
    """Whether it has experts that transformers multiplies group by group."""
    return any(hasattr(type(module), "_apply_gate") for module in whole.modules())


def _weights(whole: nn.Module) -> str:
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    by_name = dict(whole.named_parameters())
    for name, weight in by_name.items():
        if id(weight) not in seen:
            seen.add(id(weight))
            scale = by_name.get(f"{name.removesuffix('_scale')}_scale")
            sizes[_dtype(weight, scale)] += weight.nbytes
    return ", ".join(f"{size / 2**30:.2f} GiB in {name}" for name, size in sizes.most_common())


def _dtype(weight: torch.Tensor, scale: torch.Tensor | None) -> str:
    """What a weight is in. scale: that of the weight, or the weight itself if it is one."""
    if scale is not None and scale.dtype is torch.int32:
        return "MXFP4"
    if weight.dtype.itemsize == 1 and weight.dtype.is_floating_point:
        return "FP8 by blocks" if scale is not None and are_of_blocks(weight, scale) else "FP8"
    return str(weight.dtype).removeprefix("torch.")


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
