"""Whether compiling a model's layers pays: what it saves of what is to be drawn, by measured steps.

Nothing of the machine is asked: whoever asks for the same draws the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Measured on one H100 80 GB, torch 2.11, llama3-8b in bfloat16. `--compile` made the second start
# 18 s longer, and the first one 24. A step took, uncompiled and compiled, 8.6 and 6.2 ms with 32
# rows, 12.0 and 8.1 with 256, 35.6 and 28.5 with 1,024.
COMPILING_SECONDS = 20.0
STEP_SECONDS_A_LAYER = 71e-6
STEP_SECONDS_A_NUMBER = 36e-12  # of the hidden states, in each layer

UNBOUNDED = 256  # tokens of a sample that only the context bounds, about
_ROWS = 1024  # where nobody says how many decode together

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True)
class ModelShape:
    """What the rule asks of a model."""

    layers: int
    hidden_size: int


def saved_seconds(tokens: int, samples: int, shape: ModelShape, rows: int | None) -> float:
    """What compiled layers would save of a job.

    tokens: that all its samples may have. rows: that decode together at most.
    """
    together = min(rows or _ROWS, max(1, samples))
    numbers = together * shape.hidden_size
    step = shape.layers * (STEP_SECONDS_A_LAYER + numbers * STEP_SECONDS_A_NUMBER)
    return tokens / together * step


def shape_of(config: Any) -> ModelShape | None:
    """The shape by transformers' config; None where that says it otherwise."""
    text = config.get_text_config()
    return shape_in({name: getattr(text, name, None) for name in (*_LAYERS, *_HIDDEN)})


def shape_in(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape by what a config.json says of the text model."""
    layers = next((config[name] for name in _LAYERS if config.get(name) is not None), None)
    hidden = next((config[name] for name in _HIDDEN if config.get(name) is not None), None)
    if not isinstance(layers, int) or not isinstance(hidden, int):
        return None
    return ModelShape(layers, hidden)
