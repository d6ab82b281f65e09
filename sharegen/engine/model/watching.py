"""Whether a model's weights have changed since somebody looked.

Whoever has the module may train it, load other weights into it or merge an adapter while an
engine uses it. The engine computes with the weights as they are, but what it keeps of earlier
prompts is of those before.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import nn

Look: TypeAlias = Literal["same", "changed", "moved"]
"""Weights that were changed where they lie, or that lie elsewhere, whatever they are."""

_SAMPLES = 32  # numbers of a weight that are compared


class Weights:
    """The weights of a module as they stood at the last look.

    A change in place is seen by the weight's counter of such changes, or by some of its numbers:
    what is written through `.data` is not counted. Looking takes a millisecond, so that every call
    can.
    """

    def __init__(self, module: nn.Module) -> None:
        self._places = [
            (owner, name)
            for owner in module.modules()
            for name, weight in owner._parameters.items()
            if weight is not None
        ]
        self._memory: list[int] = []
        self._changes: list[int] = []
        self._some: list[torch.Tensor] = []  # views of a few numbers, where the weights lie
        self._numbers: list[torch.Tensor] = []  # copies of these at the last look

    def look(self) -> Look:
        """What has become of them since the last look."""
        found = (owner._parameters.get(name) for owner, name in self._places)
        weights = [weight.detach() for weight in found if weight is not None]
        weights = [weight for weight in weights if type(weight) is torch.Tensor]  # not packed ones
        memory = [weight.data_ptr() for weight in weights]
        changes = [0 if weight.is_inference() else weight._version for weight in weights]
        if memory != self._memory:
            self._some = [_some(weight) for weight in weights if _is_plain(weight)]
        numbers = _copied(self._some)
        found_again: Look = "same"
        if self._memory and memory != self._memory:
            found_again = "moved"
        elif self._memory and (
            changes != self._changes or not all(map(torch.equal, numbers, self._numbers))
        ):
            found_again = "changed"
        self._memory, self._changes, self._numbers = memory, changes, numbers
        return found_again


def _is_plain(weight: torch.Tensor) -> bool:
    return weight.numel() > 0 and weight.is_contiguous()


def _some(weight: torch.Tensor) -> torch.Tensor:
    """Return some numbers from all over the weight."""
    if weight.element_size() == 1:  # FP8, which torch does not put together
        weight = weight.view(torch.uint8)
    return weight.view(-1)[:: max(1, weight.numel() // _SAMPLES)]


@torch.no_grad()
def _copied(some: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy their bits, one tensor for each device and kind of number."""
    found: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for numbers in some:
        found.setdefault((numbers.device, numbers.dtype), []).append(numbers)
    return [torch.cat(parts).view(torch.uint8) for parts in found.values()]
