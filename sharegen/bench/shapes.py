"""Models of well-known shapes with random weights, and the workloads of the measurements."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.fp8 import quantising
from sharegen.engine.model.fp8.products import LEAST
from sharegen.engine.model.load import load_model, load_random_shard
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import UsageError

_LLAMA: dict[str, dict[str, Any]] = {
    "llama3-8b": {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 32_768, "rope_theta": 500_000.0,
    },
    "tiny": {
        "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
    },
    "llama2-7b": {
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 32_768,
    },
    "llama2-13b": {
        "vocab_size": 32_000, "hidden_size": 5120, "intermediate_size": 13_824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
        "max_position_embeddings": 32_768,
    },
    "codellama-7b": {
        "vocab_size": 32_016, "hidden_size": 4096, "intermediate_size": 11_008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0,
    },
    "codellama-13b": {
        "vocab_size": 32_016, "hidden_size": 5120, "intermediate_size": 13_824,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40,
        "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0,
    },
    "codellama-34b": {
        "vocab_size": 32_000, "hidden_size": 8192, "intermediate_size": 22_016,
        "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 8,
        "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0,
    },
    "llama3-70b": {
        "vocab_size": 128_256, "hidden_size": 8192, "intermediate_size": 28_672,
        "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "max_position_embeddings": 32_768, "rope_theta": 500_000.0,
    },
}  # fmt: skip
SHAPES = tuple(_LLAMA)

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
"""What configs call the number of experts that a router chooses among."""

_LONG = 30.0  # numbers of embeddings beside which what some 50 random layers add is small


@dataclass(frozen=True)
class Workload:
    """Random prompts: one shared prefix, then a problem each; a fixed number of new tokens."""

    prefix: int
    problem: int
    problems: int
    samples: int
    output: int

    def prompts(self, vocab_size: int, seed: int = 0) -> list[list[int]]:
        rng = random.Random(seed)
        prefix = [rng.randrange(3, vocab_size) for _ in range(self.prefix)]
        return [
            prefix + [rng.randrange(3, vocab_size) for _ in range(self.problem)]
            for _ in range(self.problems)
        ]


WORKLOADS = {
    "gsm8k": Workload(1024, 96, 96, 32, 128),
    "apps": Workload(2400, 512, 8, 128, 128),
    "longdoc": Workload(8192, 64, 32, 32, 128),
    "noshare": Workload(0, 1024, 512, 1, 128),
    "few": Workload(1024, 96, 4, 8, 256),
    "reason": Workload(256, 128, 16, 32, 2048),
    "plain": Workload(0, 1000, 512, 1, 1000),
}

WARM_UP = 16
"""Tokens a sample of the job that is run before one is timed: a job's first steps are those that
compile and capture."""


def workload(text: str) -> Workload:
    """A workload by name, or as PREFIX,PROBLEM,PROBLEMS,SAMPLES,OUTPUT. Raises UsageError."""
    if text in WORKLOADS:
        return WORKLOADS[text]
    try:
        numbers = [int(part) for part in text.split(",")]
        found = Workload(*numbers)
    except (ValueError, TypeError):
        raise UsageError(
            f"workload {text!r} is neither one of {', '.join(WORKLOADS)} nor five whole numbers "
            "PREFIX,PROBLEM,PROBLEMS,SAMPLES,OUTPUT"
        ) from None
    for name, number in asdict(found).items():
        least = 0 if name in ("prefix", "problem") else 1
        if number < least:
            raise UsageError(
                f"workload {text!r}: {name.upper()} is {number}: it must be at least {least}"
            )
    if not found.prefix + found.problem:
        raise UsageError(
            f"workload {text!r}: PREFIX and PROBLEM are 0: a prompt needs at least one token"
        )
    return found


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype, quantization: str | None = None
) -> PreTrainedModel:
    """A model of a known shape, or of a folder's config, with random weights made on the device.

    quantization: "fp8" makes the large ones FP8, "fp8-blocks" by blocks, and "mxfp4" experts MXFP4,
    each before the next one is made.
    """
    config = config_of(shape)
    config.dtype = dtype
    torch.manual_seed(0)
    with device if quantization is None else torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    if quantization is not None:
        _fill_with_few_bits(model, shape, device, quantization)
    _spread_over_experts(model)
    return model


def _spread_over_experts(model: PreTrainedModel) -> None:
    """Make embeddings so long that rows of different tokens go to different experts.

    Training makes experts share their rows evenly. Attention of random weights gives all rows under
    a prefix nearly the same mean of its values, which outgrows a short embedding within two layers:
    every router would choose the same few experts for all of them, and the others' weights would
    never be read. Embeddings that are the head's, too, stay as they are.
    """
    config = model.config.get_text_config()
    embeddings: Any = model.get_input_embeddings()
    head = model.get_output_embeddings()
    if not any(getattr(config, name, None) for name in _EXPERTS):
        return
    if head is None or head.weight is not embeddings.weight:
        with torch.no_grad():  # row by row, so that ranks that have some or all of them agree
            weight = embeddings.weight
            length = torch.linalg.vector_norm(weight, dim=1, keepdim=True, dtype=torch.float32)
            weight.mul_(_LONG * weight.shape[1] ** 0.5 / length.clamp(min=LEAST))


def _fill_with_few_bits(model: PreTrainedModel, shape: str, device: torch.device, how: str) -> None:
    """Make the weights of a model without any, module by module."""
    found, make = quantising.made_by(how, model, f"of shape {shape}", device)
    for name in [name for name, _ in model.named_modules()]:  # a list of modules would keep them
        module = model.get_submodule(name)
        module.to_empty(device=device, recurse=False)
        model._init_weights(module)
        for place in (place for place in found if place.module == name):
            weight = model.get_parameter(place.name).data
            quantising.install(model, place, make(weight, place.is_transposed, device))
    model.tie_weights()


def load_random(
    shape: str,
    dtype: torch.dtype,
    quantization: str | None,
    *,
    device: torch.device,
    ranks: Ranks | None = None,
) -> LoadedModel:
    """Load such a model; of several ranks this one's part, and the whole is nowhere."""
    if quantization not in (None, *quantising.MADE):
        raise UsageError(
            f"quantization {quantization!r} makes no weights: use {', '.join(quantising.MADE)}"
        )
    if ranks is None:
        return load_model(random_model(shape, device, dtype, quantization))
    loaded = load_random_shard(config_of(shape), shape, dtype, ranks, quantization)
    _spread_over_experts(loaded.model)
    return loaded


def vocabulary(shape: str) -> int:
    """Return the number of tokens that a shape knows."""
    return int(config_of(shape).get_text_config().vocab_size)


def config_of(shape: str) -> Any:
    """Raises UsageError."""
    if shape in _LLAMA:
        return LlamaConfig(**_LLAMA[shape], eos_token_id=2, bos_token_id=1)
    if (Path(shape) / "config.json").is_file():
        return load_config(locate(shape))
    raise UsageError(f"shape {shape!r} is neither one of {', '.join(SHAPES)} nor a model folder")
