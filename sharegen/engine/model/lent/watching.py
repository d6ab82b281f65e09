"""Whether a model's weights have changed since somebody looked.

Whoever has the module may train it, load other weights into it or merge an adapter while an
engine uses it. The engine computes with the weights as they are, but what it keeps of earlier
prompts is of those before.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn

from sharegen.engine.model.lent.sharded import sharded_by
from sharegen.errors import UsageError

Look: TypeAlias = Literal["same", "changed", "moved"]
"""Weights that were changed where they lie, or that lie elsewhere, whatever they are."""

_SAMPLES = 32  # numbers of a weight that are compared
_MERGED = "merged_adapters"  # of a layer of peft's


class _Kind(NamedTuple):
    """What may not change of a weight: the engine's memory and code are made for it."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} {list(self.shape)} on {self.device}"


class Weights:
    """The weights of a module as they stood at the last look.

    A change in place is seen by the weight's counter of such changes, or by some of its numbers:
    what is written through `.data` is not counted. Looking takes a millisecond, so that every call
    can.

    is_lent: whether the module is somebody else's, who may do anything to it.

    Attributes:
        moved: the name of a weight that the last look found elsewhere in memory, if there was one.
    """

    def __init__(self, module: nn.Module, is_lent: bool = False) -> None:
        self._module = module
        self._places = [
            (owner, name, _Kind(weight.shape, weight.dtype, weight.device))
            for owner in module.modules()
            for name, weight in owner._parameters.items()
            if weight is not None
        ]
        self._paths = [
            ".".join(filter(None, (path, name)))
            for path, owner in module.named_modules()
            for name, weight in owner._parameters.items()
            if weight is not None
        ]
        self._parts = list(module.modules()) if is_lent else None
        self._with_adapters = [part for part in module.modules() if hasattr(part, _MERGED)]
        self.moved: str | None = None
        self._memory: list[int] = []
        self._changes: list[Any] = []
        self._some: list[torch.Tensor] = []  # views of a few numbers, where the weights lie
        self._numbers: list[torch.Tensor] = []  # copies of these at the last look

    def by_name(self) -> dict[str, nn.Parameter]:
        """The weights, by the names that a checkpoint has for them, wherever they lie now."""
        found = (owner._parameters.get(name) for owner, name, _ in self._places)
        return {
            path: weight
            for path, weight in zip(self._paths, found, strict=True)
            if weight is not None
        }

    def look(self) -> Look:
        """What has become of them since the last look.

        Raises UsageError where somebody has put other modules into the model, or weights of other
        shapes, dtypes or devices.
        """
        self._refuse_other_parts()
        found = [
            (owner, name, weight.detach())
            for owner, name, _ in self._places
            if (weight := owner._parameters.get(name)) is not None
        ]
        found = [each for each in found if type(each[2]) is torch.Tensor]  # not packed ones
        weights = [weight for *_, weight in found]
        memory = [weight.data_ptr() for weight in weights]
        changes: list[Any] = [0 if weight.is_inference() else weight._version for weight in weights]
        changes += [_adapters(part) for part in self._with_adapters]
        if memory != self._memory:
            self._refuse_other_kinds()
            self._some = [_some(weight) for weight in weights if _is_plain(weight)]
        numbers = _copied(self._some)
        found_again: Look = "same"
        self.moved = None
        if self._memory and memory != self._memory:
            found_again = "moved"
            places = zip(found, memory, self._memory, strict=False)  # fewer: some are gone
            moved = next((each for each, now, was in places if now != was), found[-1])
            self.moved = self._path(*moved[:2])
        elif self._memory and (
            changes != self._changes or not all(map(torch.equal, numbers, self._numbers))
        ):
            found_again = "changed"
        self._memory, self._changes, self._numbers = memory, changes, numbers
        return found_again

    def _refuse_other_parts(self) -> None:
        if self._parts is None:
            return
        now = list(self._module.named_modules())
        if [part for _, part in now] == self._parts:
            return
        known = set(self._parts)
        added = [(name, part) for name, part in now if part not in known]
        what = (
            f"{added[0][0] or 'it'} is a {type(added[0][1]).__name__} now"
            if added
            else "parts of it are gone"
        )
        raise UsageError(
            f"the model has other modules than when the LLM was made ({what}): close this LLM and "
            "make a new one"
        )

    def _refuse_other_kinds(self) -> None:
        by = None if self._parts is None else sharded_by(self._module)
        if by is not None:
            raise UsageError(
                f"the model is sharded by {by} now, as it was not when the LLM was made: close it"
            )
        for owner, name, was in self._places:
            weight = owner._parameters.get(name)
            now = None if weight is None else _Kind(weight.shape, weight.dtype, weight.device)
            if now == was or (self._parts is None and now is None):
                continue
            become = f"is {now}" if now else "is gone"
            raise UsageError(
                f"the model's {self._path(owner, name)} was {was} when the LLM was made, and "
                f"{become} now: close this LLM and make a new one"
            )

    def _path(self, owner: nn.Module, name: str) -> str:
        """What a checkpoint calls a weight, also where its module is no part of the model now."""
        places = zip(self._paths, self._places, strict=True)
        return next(path for path, (of, own, _) in places if of is owner and own == name)


def _adapters(part: Any) -> tuple[Any, ...]:
    """Which adapters a layer of peft's computes with, and how."""
    scaling = dict(getattr(part, "scaling", None) or {})
    return tuple(part.active_adapters), part.disable_adapters, tuple(part.merged_adapters), scaling


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
