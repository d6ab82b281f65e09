"""Which models have room here at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM

from benchmarks.papers.experiment import Settings, say
from sharegen.bench.shapes import config_of
from sharegen.engine.engine import Engine
from sharegen.engine.execute.memory import memory_of_cpu
from sharegen.errors import CapacityError

_QUICK_MEMORY = 256 << 20


def memory_of_kv(settings: Settings) -> int | None:
    """Return the bytes that an engine takes for its KV cache; None: what it finds for itself.

    The tiny model takes little: a GPU holds so many of its blocks that to list them takes seconds.
    """
    return _QUICK_MEMORY if settings.quick and settings.shape is None else None


def shapes_that_fit(shapes: Sequence[str], settings: Settings) -> list[str]:
    """Return the shapes whose weights have room; of the others a line. Raises CapacityError for
    none at all.
    """
    ranks = settings.tensor_parallel_size or 1
    if settings.device.type == "cuda":
        memory = ranks * torch.cuda.get_device_properties(settings.device).total_memory
    else:
        memory = memory_of_cpu()
    found = []
    for shape in shapes:
        weights = weights_bytes(shape, settings.dtype)
        if weights < memory:
            found.append(shape)
        else:
            say(f"{shape} is left out: its weights are {weights:,} bytes, the memory {memory:,}")
    if not found:
        raise CapacityError(
            "no model fits: take a smaller --shape, --quick or --tensor-parallel-size"
        )
    return found


def has_context(engine: Engine, tokens: int, what: str) -> bool:
    """Whether the model takes so many tokens of prompt and output together; where not, a line."""
    most = engine.model.context_length
    if tokens > most:
        say(f"{what} is left out: it takes {tokens:,} tokens, the context holds {most:,}")
    return tokens <= most


def weights_bytes(shape: str, dtype: torch.dtype) -> int:
    """Return the bytes of a shape's weights, without making them. Raises UsageError."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(shape))
    return sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
