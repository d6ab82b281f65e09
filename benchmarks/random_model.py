"""A folder with a model of random weights, for whole commands: `python -m benchmarks random-model`.

Random weights draw nearly uniformly: with N EOS ids of a vocabulary of V, a sample ends with a
probability of about N / V a step.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, PreTrainedModel

from sharegen.bench.shapes import config_of, random_model, vocabulary
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.fp4.numbers import rounded
from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.fp8.blocks import BLOCK, quantise_blocks
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.errors import UsageError
from sharegen.kernels.fp4_words import LARGEST_SCALE
from sharegen.workload.recipe import RECIPES

_TOKENIZER = RECIPES / "tinymath" / "model"
_MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn",
          "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}  # fmt: skip
_BLOCKS = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK],
           "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}  # fmt: skip
_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")


def save_random_model(
    shape: str, folder: Path, eos: int, device: torch.device, stored: str | None = None
) -> None:
    """Write a folder that every command takes as a model; it must be new.

    Random weights in bfloat16, and the tokenizer of the bundled model. eos: ids that end a
    sample, spread evenly over the vocabulary, the tokenizer's own among them. stored: "mxfp4" for
    experts in MXFP4, as gpt-oss is published, "fp8-blocks" for layers' weights in FP8 by blocks, as
    Qwen3-FP8 is.
    """
    tokenizer = load_tokenizer(_TOKENIZER)
    size = vocabulary(shape)
    if size < len(tokenizer):
        raise UsageError(
            f"shape {shape!r} has a vocabulary of {size}: the tokenizer needs {len(tokenizer):,}"
        )
    if not 1 <= eos <= size:
        raise UsageError(f"--eos {eos}: it must be from 1 to the vocabulary's {size:,}")
    if stored == FP4 and config_of(shape).model_type != "gpt_oss":
        raise UsageError(f"--stored {FP4}: shape {shape!r} is not gpt-oss, which is stored so")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"folder {folder}: {error.strerror}: name a new one") from None
    model = random_model(shape, device, torch.bfloat16)
    own, first = tokenizer.eos_token_id, tokenizer.bos_token_id
    model.config.eos_token_id, model.config.bos_token_id = own, first
    model.generation_config = GenerationConfig(
        bos_token_id=first,
        eos_token_id=sorted((own + i * size // eos) % size for i in range(eos)),
        pad_token_id=tokenizer.pad_token_id,
    )
    if stored == FP4:
        _save_in_mxfp4(model, folder)
    else:
        model.save_pretrained(folder)
    if stored == BLOCKS:
        _put_into_blocks(folder, device)
    tokenizer.save_pretrained(folder)


def _save_in_mxfp4(model: PreTrainedModel, folder: Path) -> None:
    """Experts as blocks of 32 numbers of an output, two in a byte, and a scale for each block."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if name.endswith(_EXPERTS):
            parts = [rounded(expert.t(), LARGEST_SCALE) for expert in weight]
            blocks, scales = (torch.stack(part).cpu() for part in zip(*parts, strict=True))
            tensors[f"{name}_blocks"] = blocks.unflatten(-1, (-1, 16)).contiguous()
            tensors[f"{name}_scales"] = scales
        else:
            tensors[name] = weight.cpu().contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.quantization_config = _MXFP4
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def _put_into_blocks(folder: Path, device: torch.device) -> None:
    """Weights of layers whose sizes allow it in FP8, with a scale for 128 x 128 numbers of each."""
    places: dict[str, str] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file, device=str(device))
        for name in [name for name in tensors if _may_be_blocks(name, tensors[name])]:
            tensors[name], tensors[f"{name}_scale_inv"] = quantise_blocks(tensors[name])
        save_file(tensors, file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file.name)
    index = folder / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config = folder / "config.json"
    said = json.loads(config.read_text()) | {"quantization_config": _BLOCKS}
    config.write_text(json.dumps(said))


def _may_be_blocks(name: str, weight: torch.Tensor) -> bool:
    is_linear = ".layers." in name and name.endswith("_proj.weight") and weight.ndim == 2
    return is_linear and not any(size % BLOCK for size in weight.shape)
