"""Integers and small floats of known values, packed as public checkpoints have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.engine.tiny_models import make_tiny

Tensors = dict[str, torch.Tensor]
Packer = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
"""(name, weight [N, K]) -> (what the file holds of it, what it is worth)."""

E4M3 = torch.float8_e4m3fn
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def words(numbers: torch.Tensor, bits: int, dim: int, order: tuple[int, ...] = ()) -> torch.Tensor:
    """Integers in words of 32 bits along `dim`, the lowest bits first, rest filled with zeros."""
    count = 32 // bits
    moved = numbers.long().movedim(dim, -1)
    moved = nn.functional.pad(moved, (0, -moved.shape[-1] % count)).unflatten(-1, (-1, count))
    if order:
        moved = moved[..., list(order)]
    packed = sum(moved[..., i] << (bits * i) for i in range(count))
    assert isinstance(packed, torch.Tensor)
    packed = torch.where(packed >= 2**31, packed - 2**32, packed)
    return packed.int().movedim(-1, dim).contiguous()


def integers(
    weight: torch.Tensor, bits: int, group: torch.Tensor, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight: [N, K] -> numbers [N, K], zero points [N, G] and float16 scales [N, G].

    group: [K], that of each input.
    """
    scales, zeros = [], []
    for i in range(int(group.max()) + 1):
        own = weight[:, group == i]
        low, high = own.amin(1).clamp(max=-1e-3), own.amax(1).clamp(min=1e-3)
        if symmetric:
            high = torch.maximum(-low, high)
            low = -high
        scale = ((high - low) / (2**bits - 1)).half()
        scales.append(scale)
        middle = torch.full_like(low, 2 ** (bits - 1))
        zeros.append(middle if symmetric else (-low / scale.float()).round())
    scale, zero = torch.stack(scales, 1), torch.stack(zeros, 1).clamp(1, 2**bits - 1).int()
    numbers = (weight / scale.float()[:, group]).round().int() + zero[:, group]
    return numbers.clamp(0, 2**bits - 1), zero, scale


def value(
    numbers: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, group: torch.Tensor
) -> torch.Tensor:
    return (numbers - zero[:, group]).float() * scale.float()[:, group]


def gptq(
    bits: int = 4, size: int = 16, symmetric: bool = False, shuffled: bool = False, v2: bool = False
) -> Packer:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        group = torch.arange(weight.shape[1]) // size
        if shuffled:
            group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(1))]
        numbers, zero, scale = integers(weight, bits, group, symmetric)
        stored = {
            "qweight": words(numbers.t(), bits, 0),
            "qzeros": words((zero if v2 else zero - 1).t(), bits, 1),
            "scales": scale.t().contiguous(),
            "g_idx": group.int(),
        }
        return stored, value(numbers, zero, scale, group)

    return pack


def awq(size: int = 16) -> Packer:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        group = torch.arange(weight.shape[1]) // size
        numbers, zero, scale = integers(weight, 4, group, False)
        stored = {
            "qweight": words(numbers.t(), 4, 1, AWQ_ORDER),
            "qzeros": words(zero.t(), 4, 1, AWQ_ORDER),
            "scales": scale.t().contiguous(),
        }
        return stored, value(numbers, zero, scale, group)

    return pack


def packed_rows(
    bits: int = 4, size: int | None = 16, symmetric: bool = True, shuffled: bool = False
) -> Packer:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        group = torch.arange(weight.shape[1]) // (size or weight.shape[1])
        if shuffled:
            group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(1))]
        numbers, zero, scale = integers(weight, bits, group, symmetric)
        stored = {
            "weight_packed": words(numbers, bits, 1),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            stored["weight_zero_point"] = words(zero, bits, 0)
        if shuffled:
            stored["weight_g_idx"] = group.int()
        return stored, value(numbers, zero, scale, group)

    return pack


def fp8_blocks(scale: str = "weight_scale_inv") -> Packer:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = (torch.arange(size) // 128 for size in weight.shape)
        scales = torch.zeros(int(rows[-1]) + 1, int(columns[-1]) + 1)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = weight[rows == i][:, columns == j]
                scales[i, j] = block.abs().max().clamp(min=1e-6) / 448
        wide = scales[rows][:, columns]
        stored = (weight / wide).to(E4M3)
        return {"weight": stored, scale: scales}, stored.float() * wide

    return pack


def mxfp4(weight: torch.Tensor, spread: int = 3) -> tuple[Tensors, torch.Tensor]:
    """weight: [E, K, N] as gpt-oss has it -> its parts, and what they are worth."""
    rows = weight.transpose(-2, -1).unflatten(-1, (-1, 32))
    largest = rows.abs().amax(-1, keepdim=True).clamp(min=1e-6)
    exponent = (largest / 6).log2().ceil().clamp(-60, 60)
    if spread:
        shift = torch.arange(exponent.shape[-2]).view(-1, 1) % 2
        exponent = exponent - spread * shift
    code = (rows.abs() / 2**exponent).unsqueeze(-1).sub(_E2M1).abs().argmin(-1)
    worth = torch.where(rows < 0, -_E2M1[code], _E2M1[code]) * 2**exponent
    code = code + 8 * (rows < 0)
    blocks = (code[..., 0::2] | (code[..., 1::2] << 4)).to(torch.uint8)
    parts = {"_blocks": blocks.contiguous(), "_scales": (exponent[..., 0] + 127).to(torch.uint8)}
    return parts, worth.flatten(-2).transpose(-2, -1).contiguous()


def rewrite(folder: Path, settings: dict[str, Any], change: Callable[[Tensors], Tensors]) -> None:
    """Say in the config how the checkpoint is quantised, and change what its file holds."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    tensors = change(load_file(file))
    save_file({k: t.contiguous() for k, t in tensors.items()}, file, metadata={"format": "pt"})


def store(
    folder: Path, name: str, settings: dict[str, Any], pack: Packer, config: Any = None
) -> PreTrainedModel:
    """A tiny model's folder with the linear layers of its layers packed; what it is worth.

    config: another one than that of the tiny model.
    """
    model = make_tiny(name) if config is None else AutoModelForCausalLM.from_config(config).float()
    model.save_pretrained(folder)
    worth: Tensors = {}

    def change(tensors: Tensors) -> Tensors:
        done: Tensors = {}
        for key, tensor in tensors.items():
            if ".layers." in key and key.endswith("_proj.weight") and tensor.ndim == 2:
                prefix = key.removesuffix("weight")
                parts, worth[key] = pack(key, tensor)
                done |= {prefix + part: stored for part, stored in parts.items()}
            else:
                done[key] = tensor
        return done

    rewrite(folder, settings, change)
    return plain(folder, worth)


def plain(folder: Path, worth: Tensors) -> PreTrainedModel:
    """The model of a folder with these numbers in place of what is packed, by transformers."""
    own = folder / "plain"
    own.mkdir()
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (own / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    parts = ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale",
             "weight_shape", "weight_zero_point", "weight_g_idx", "_scale_inv", "_blocks",
             "_scales")  # fmt: skip
    kept = {k: t for k, t in tensors.items() if not k.endswith(parts) and k not in worth}
    save_file(kept | worth, own / "model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(
        own, dtype=torch.float32, attn_implementation="eager"
    )
