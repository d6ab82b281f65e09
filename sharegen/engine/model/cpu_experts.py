"""Experts on a CPU: the arithmetic of a token must not depend on how many others share its expert.

Some processors multiply one, two or three rows otherwise than more, with other last bits, and of a
vector's numbers an odd end is rounded apart. So each expert that has tokens computes four rows,
eight, twelve and so on: what it lacks are zeros, of which nothing is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

_ROWS = 4  # those of an expert come in multiples of this
_ALL_ROWS = 32  # those of all experts, for each that a token chooses

_ByToken = Callable[[Tensor, Tensor, Tensor], Tensor]
_BySize = Callable[[Tensor, list[int]], Tensor]


def fill_experts(model: nn.Module, undo: ExitStack) -> None:
    """Let the experts of a model on a CPU compute so. undo: takes what takes that back."""
    for module in model.modules():
        kind = type(module)
        parameters = list(inspect.signature(kind.forward).parameters)[1:]
        if hasattr(kind, "_apply_gate") or parameters[1:] == ["top_k_index", "top_k_weights"]:
            module.forward = _filled_by_token(module.forward)
        elif parameters == ["inputs", "expert_size"]:
            module.forward = _filled_by_size(module.forward)
        else:
            continue
        undo.callback(delattr, module, "forward")


def _filled_by_token(forward: _ByToken) -> _ByToken:
    """Wraps experts of transformers' interface, and others that are called in the same way.

    They take tokens [T, hidden], or with more axes before, and the experts and weights of each
    token, [T, k].
    """

    def filled(tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # for a GPU
            return forward(tokens, chosen, weights)
        rows = tokens.flatten(0, -2)
        added = _added(chosen)
        more = (0, 0, 0, len(added))
        out = forward(pad(rows, more), torch.cat([chosen, added]), pad(weights, more))
        return out.flatten(0, -2)[: len(rows)].view(tokens.shape)

    return filled


def _filled_by_size(forward: _BySize) -> _BySize:
    """Wraps experts that take rows in their order and a count for each expert, as jetmoe's do."""

    def filled(rows: Tensor, counts: list[int]) -> Tensor:
        if torch.compiler.is_compiling():
            return forward(rows, counts)
        more = [-count % _ROWS for count in counts]
        parts = rows.split(counts)
        whole = torch.cat([pad(part, (0, 0, 0, n)) for part, n in zip(parts, more, strict=True)])
        sizes = [count + n for count, n in zip(counts, more, strict=True)]
        out = forward(whole, sizes).split(sizes)
        return torch.cat([part[:count] for part, count in zip(out, counts, strict=True)])

    return filled


def _added(chosen: Tensor) -> Tensor:
    """Experts of further tokens, [n, k], with which each that has tokens has a multiple of _ROWS.

    The last of them may be any that has tokens, in multiples of _ROWS, too. chosen: [T, k].
    """
    count = chosen.flatten().bincount()
    experts = torch.arange(len(count)).repeat_interleave(-count % _ROWS)
    k = chosen.shape[1]
    experts = pad(experts, (0, -len(experts) % (_ALL_ROWS * k)), value=int(chosen[0, 0]))
    return experts.view(-1, k).to(chosen.dtype)
