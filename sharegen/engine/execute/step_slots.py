"""Which slots of the pool of states a step reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from sharegen.engine.model.states.in_place import RECURRENT, Key
from sharegen.engine.model.states.mixers import States


@dataclass(frozen=True)
class Places:
    """Where sequences have their states before and after some tokens.

    Args:
        read, write: [n] int64, slots.
        position: [n] int64, how many tokens came before.
        tokens: how many tokens each sequence goes on by.
    """

    read: torch.Tensor
    write: torch.Tensor
    position: torch.Tensor
    tokens: int = 1
    _columns: dict[tuple[int, int], torch.Tensor] = field(init=False, default_factory=dict)

    def before(self, pool: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Return copies of the states that are read, in the shapes that mixers know."""
        return self._gathered(pool, self.read, 0)

    def after(self, pool: Mapping[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
        """Return copies of the states that are written, likewise."""
        return self._gathered(pool, self.write, self.tokens)

    def put(self, pool: Mapping[Key, torch.Tensor], states: States) -> None:
        """Write the states that a mixer left to their slots."""
        for key, tensor in pool.items():
            state = states.tensors[key].to(tensor.dtype)
            if key == RECURRENT:
                tensor.index_copy_(0, self.write, state)
            else:
                tensor[self.write[:, None], self._ring(tensor, self.tokens)] = state.mT

    def _gathered(
        self, pool: Mapping[Key, torch.Tensor], slots: torch.Tensor, tokens: int
    ) -> dict[Key, torch.Tensor]:
        return {
            key: tensor.index_select(0, slots) if key == RECURRENT
            else tensor[slots[:, None], self._ring(tensor, tokens)].mT
            for key, tensor in pool.items()
        }  # fmt: skip

    def _ring(self, states: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return where a convolution's last inputs lie after some tokens, from the oldest on.

        It is computed once for all mixers.

        Args:
            states: [slots, columns, channels].

        Returns:
            [n, columns] int64.
        """
        count = states.shape[1]
        if (count, tokens) not in self._columns:
            columns = torch.arange(tokens, tokens + count, device=states.device)
            self._columns[count, tokens] = (self.position[:, None] + columns) % count
        return self._columns[count, tokens]


@dataclass(frozen=True)
class StepSlots:
    """Where the sequences of a decoding step, one token each, have their states.

    Args:
        places: where they read and write.
        start: [n] int64, the slots of the prompts' states, from which those go on that keep their
            tokens.
        kept: [n] int32, how many tokens a sequence keeps in the slot that it writes; -1 where that
            slot has its state.
        settling: [n] int32, how many tokens become the state there, 0 for none: after a step in
            place, and before one that copies.
        in_place: whether nobody reads what another one writes.

    Attributes:
        state: [n] int64, where each reads a state in place: the prompt's, while it keeps tokens.
    """

    places: Places
    start: torch.Tensor
    kept: torch.Tensor
    settling: torch.Tensor
    in_place: bool
    state: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        state = torch.where(self.kept < 0, self.places.read, self.start)
        object.__setattr__(self, "state", state)  # once a step, not once a layer
