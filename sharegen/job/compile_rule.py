"""Whether a job on a GPU begins with compiling: where it is done sooner so, its start included.

The rule asks the job as a whole, not what its journal lacks, and nothing of the machine: whoever
continues a job draws as it was begun.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sharegen.job.model_files import model_on_disk
from sharegen.workload.configuration import Configuration
from sharegen.workload.sampling_section import Sampling

# Measured on one H100 80 GB, torch 2.11, llama3-8b in bfloat16. `--compile` made the second start
# 18 s longer, and the first one 24. A step took, uncompiled and compiled, 8.6 and 6.2 ms with 32
# rows, 12.0 and 8.1 with 256, 35.6 and 28.5 with 1,024.
COMPILING_SECONDS = 20.0
STEP_SECONDS_A_LAYER = 71e-6
STEP_SECONDS_A_NUMBER = 36e-12  # of the hidden states, in each layer

_UNBOUNDED = 256  # tokens of a sample that only the context bounds, about
_ROWS = 1024  # where nobody says how many decode together

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True)
class ModelShape:
    """What the rule asks of a model."""

    layers: int
    hidden_size: int


def compiling_pays(samplings: Sequence[Sampling], shape: ModelShape, rows: int | None) -> bool:
    """Whether the job takes longer uncompiled, by more than compiling takes.

    samplings: of all problems. rows: that decode together at most.
    """
    tokens = sum(sampling.problem_tokens(_UNBOUNDED) for sampling in samplings)
    samples = sum(sampling.rows for sampling in samplings)
    together = min(rows or _ROWS, max(1, samples))
    numbers = together * shape.hidden_size
    step = shape.layers * (STEP_SECONDS_A_LAYER + numbers * STEP_SECONDS_A_NUMBER)
    return tokens / together * step > COMPILING_SECONDS


def with_compile(
    configuration: Configuration, samplings: Sequence[Sampling], shape: ModelShape | None
) -> Configuration:
    """The configuration with `machine.compile` said, where it was open and the shape is known.

    A job that is to have the same bits whatever runs beside it compiles, however long it is: how
    many problems are asked may not change a sample.
    """
    machine = configuration.machine
    if machine.compile is not None or shape is None:
        return configuration
    pays = machine.deterministic or compiling_pays(samplings, shape, machine.max_sequences)
    return configuration.model_copy(
        update={"machine": machine.model_copy(update={"compile": pays})}
    )


def shape_on_disk(configuration: Configuration) -> ModelShape | None:
    """The shape by the model's config.json, before anything that could read more is imported.

    None where it is not on this machine, or says it otherwise.
    """
    model = model_on_disk(configuration)
    try:
        config = None if model is None else json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):  # who loads the model says it
        return None
    if not isinstance(config, Mapping):
        return None
    text = config.get("text_config")
    return _shape(text if isinstance(text, Mapping) else config)


def shape_of(config: Any) -> ModelShape | None:
    """The shape by transformers' config."""
    text = config.get_text_config()
    return _shape({name: getattr(text, name, None) for name in (*_LAYERS, *_HIDDEN)})


def _shape(config: Mapping[str, Any]) -> ModelShape | None:
    layers = next((config[name] for name in _LAYERS if config.get(name) is not None), None)
    hidden = next((config[name] for name in _HIDDEN if config.get(name) is not None), None)
    if not isinstance(layers, int) or not isinstance(hidden, int):
        return None
    return ModelShape(layers, hidden)
