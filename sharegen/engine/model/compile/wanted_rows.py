"""Which models' last layer may be computed for some rows alone, and that it then is."""

from __future__ import annotations

import torch

from sharegen.engine.model.compile.stacking import (
    CALLED_TOKENS,
    LayerCall,
    Stack,
    calls_of,
    decoder_layers,
)
from sharegen.engine.model.last_layer import Wanted
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import alone

_TOKENS, _ROWS = 8, 2  # of the trial
_TOLERANCE = 0.1  # of the logits' norm: rows that are others' differ by as much as it is


def skip_unwanted_rows(model: LoadedModel) -> None:
    """Have the last layer computed for wanted rows alone, until the model is released.

    A model of which a trial shows that this makes no difference has it so.
    """
    model.wanted = wanted_rows(model)
    if model.wanted is not None:
        last = Stack(decoder_layers(model)[-1:], model.wanted)
        last.take_over()
        model.on_release(last.leave)


def wanted_rows(model: LoadedModel) -> Wanted | None:
    """What tells a model's last layer the rows; None where its code does not allow it.

    The layers are as transformers made them: not compiled, nor taken over.
    """
    model.wanted = None  # of an engine before
    wanted = Wanted()
    try:
        with alone():
            is_same = _is_same(model, wanted)
    except Exception:  # whatever its code does that no row can be without
        is_same = False
    if model.ranks is not None:
        is_same = bool(model.ranks.least(is_same))
    return wanted if is_same else None


def _is_same(model: LoadedModel, wanted: Wanted) -> bool:
    """Whether some rows' logits are the same when only these rows are wanted."""
    layers = decoder_layers(model)
    calls = calls_of(model, layers) if layers else []
    if not calls or not _is_of_tokens(calls[-1]):
        return False  # the last one of them is not what the model calls last, or is given no rows
    expected = model.trial_forward(_TOKENS, _ROWS).float()
    last = Stack(layers[-1:], wanted)
    last.take_over()
    model.wanted = wanted
    try:
        logits = model.trial_forward(_TOKENS, _ROWS).float()
    finally:
        model.wanted = None
        last.leave()
    difference = torch.where(logits == expected, 0.0, logits - expected).norm()
    size = torch.where(expected.isinf(), 0.0, expected).norm()
    return bool(difference <= _TOLERANCE * size)


def _is_of_tokens(call: LayerCall) -> bool:
    """Whether a layer is given hidden states of which rows can be taken.

    To try it is no way to find out: a GPU is of no use to the process after an index that is not
    there.
    """
    hidden = call.args[0] if call.args else None
    return isinstance(hidden, torch.Tensor) and hidden.shape[:-1] == (1, CALLED_TOKENS)
