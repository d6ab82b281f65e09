"""What makes a model's own code fast on a GPU: fused projections and torch.compile."""

from __future__ import annotations

import warnings

import torch._dynamo.config
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.model.fusing import fuse_projections, unfuse
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.ranks import alone

_TRIAL_TOKENS = 32
_PER_LAYER = 4  # compilations of one kind of layer at most; every layer may be a kind of its own


def optimise(model: LoadedModel) -> None:
    """Fuse projections and compile the decoder layers, with a dynamic number of tokens.

    Layers of one kind share one compilation. A model that does not compile runs as it was, and a
    warning says why; so does one rank's part where that of another does not. All is undone when the
    model is released.
    """
    layers = [m for m in model.model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        warnings.warn("the model runs uncompiled: no layer of it is of transformers' own kind",
                      stacklevel=2)  # fmt: skip
    replaced = fuse_projections(model.model)
    _allow_compilations(_PER_LAYER * len(layers))
    # What every rank computes for itself, as which experts a token goes to, must be alike to the
    # bit: no rank may time tiles of a reduction and choose others than the next.
    options = None if model.ranks is None else {"deterministic": True}
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, options=options)
    reason = _failure(model)
    if model.ranks is not None and not model.ranks.least(reason is None):
        reason = reason or "that of another rank does not compile"
    if reason is None:
        model.on_release(_undo, layers, replaced)
    else:
        _undo(layers, replaced)
        warnings.warn(f"the model runs uncompiled: {reason:.200}", stacklevel=2)


def _failure(model: LoadedModel) -> str | None:
    """Why the compiler cannot do it, if so."""
    try:
        with alone():
            for count in (_TRIAL_TOKENS, 2 * _TRIAL_TOKENS):
                model.trial_forward(count, rows=8)
    except Exception as error:  # whatever the compiler could not do, the model still runs without
        return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return None


def _allow_compilations(count: int) -> None:
    """Let so many more variants of one layer's code be compiled.

    Beyond its limit (8) Dynamo raises FailOnRecompileLimitHit, in the midst of a job. The limits
    are the process's, which may have compiled other models, and are only ever raised.
    """
    config = torch._dynamo.config
    config.recompile_limit += count
    config.accumulated_recompile_limit += 16 * count


def _undo(
    layers: list[GradientCheckpointingLayer], replaced: list[tuple[nn.Module, str, nn.Module]]
) -> None:
    unfuse(replaced)
    for layer in layers:
        layer._compiled_call_impl = None
