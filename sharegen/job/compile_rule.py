"""Whether a job on a GPU begins with compiling: where it is done sooner so, its start included.

The rule asks the job as a whole, not what its journal lacks: whoever continues a job draws as it
was begun.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sharegen.engine.model.compile.rule import (
    COMPILING_SECONDS,
    UNBOUNDED,
    ModelShape,
    saved_seconds,
    shape_in,
)
from sharegen.engine.model.starting.on_disk import model_on_disk
from sharegen.workload.configuration import Configuration
from sharegen.workload.sampling_section import Sampling


def compiling_pays(samplings: Sequence[Sampling], shape: ModelShape, rows: int | None) -> bool:
    """Whether the job takes longer uncompiled, by more than compiling takes.

    samplings: of all problems. rows: that decode together at most.
    """
    tokens = sum(sampling.problem_tokens(UNBOUNDED) for sampling in samplings)
    samples = sum(sampling.rows for sampling in samplings)
    return saved_seconds(tokens, samples, shape, rows) > COMPILING_SECONDS


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
    model = model_on_disk(str(configuration.model), configuration.revision)
    try:
        config = None if model is None else json.loads((model / "config.json").read_bytes())
    except (OSError, ValueError):  # who loads the model says it
        return None
    if not isinstance(config, Mapping):
        return None
    text = config.get("text_config")
    return shape_in(text if isinstance(text, Mapping) else config)
