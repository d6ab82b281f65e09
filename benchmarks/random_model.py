"""A folder with a model of random weights, for whole commands: `python -m benchmarks random-model`.

Random weights draw nearly uniformly: with N EOS ids of a vocabulary of V, a sample ends with a
probability of about N / V a step.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig

from sharegen.bench.shapes import random_model, vocabulary
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.errors import UsageError
from sharegen.workload.recipe import RECIPES

_TOKENIZER = RECIPES / "tinymath" / "model"


def save_random_model(shape: str, folder: Path, eos: int, device: torch.device) -> None:
    """Write a folder that every command takes as a model; it must be new.

    Random weights in bfloat16, and the tokenizer of the bundled model. eos: ids that end a
    sample, spread evenly over the vocabulary, the tokenizer's own among them.
    """
    tokenizer = load_tokenizer(_TOKENIZER)
    size = vocabulary(shape)
    if size < len(tokenizer):
        raise UsageError(
            f"shape {shape!r} has a vocabulary of {size}: the tokenizer needs {len(tokenizer):,}"
        )
    if not 1 <= eos <= size:
        raise UsageError(f"--eos {eos}: it must be from 1 to the vocabulary's {size:,}")
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
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
