"""The states of mixers on the device: one pool of slots, and which of them a step reads and writes.

A step gathers the states of its sequences by slot, lets the mixer change these copies, and scatters
them to other slots or the same. So a child, or a row, goes on from its parent's state without
another copy, and nobody's state is changed under them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sharegen.engine.batch import Int32, MixedChunks
from sharegen.engine.model.mixers import Mixer, States

Send = Callable[..., tuple[torch.Tensor, ...]]


class StatePool:
    """tensors[mixer][state]: [num_slots + 2, *shape], the last two slots zero and scratch."""

    def __init__(self, mixers: Sequence[Mixer], num_slots: int, device: torch.device) -> None:
        self.mixers = mixers
        self.zero, self.scratch = num_slots, num_slots + 1
        self.device = device
        self.tensors = [mixer.fresh(num_slots + 2, device).tensors for mixer in mixers]

    def mix(
        self, index: int, hidden: torch.Tensor, read: torch.Tensor, write: torch.Tensor
    ) -> torch.Tensor:
        """hidden: [sequences, tokens, size] -> likewise; read, write: [sequences] slots."""
        pool = self.tensors[index]
        states = States({key: tensor.index_select(0, read) for key, tensor in pool.items()})
        mixed = self.mixers[index].run(hidden, states)
        for key, tensor in pool.items():
            tensor.index_copy_(0, write, states.tensors[key].to(tensor.dtype))
        return mixed


@dataclass(frozen=True)
class StatesOfRows:
    """A decoding step's: every row is a sequence of one token."""

    pool: StatePool
    read: torch.Tensor
    write: torch.Tensor

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        return self.pool.mix(index, hidden[:, None], self.read, self.write)[:, 0]


@dataclass(frozen=True)
class _Chunks:
    """rows: [n * length] of n chunks, one after the other."""

    rows: torch.Tensor
    count: int
    read: torch.Tensor
    write: torch.Tensor


class StatesOfChunks:
    """A prefill batch's: its chunks, in their order, of equal length together."""

    def __init__(self, pool: StatePool, mixed: Sequence[MixedChunks], send: Send) -> None:
        self._pool = pool
        self._chunks = []
        for chunks in mixed:
            rows = (chunks.starts[:, None] + np.arange(chunks.length)).ravel()
            places, read, write = send(rows, chunks.read, chunks.write)
            self._chunks.append(_Chunks(places, len(chunks.starts), read, write))

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        mixed = torch.zeros_like(hidden)  # rows that pad the batch are of no chunk
        for chunks in self._chunks:
            part = hidden.index_select(0, chunks.rows).view(chunks.count, -1, hidden.shape[-1])
            done = self._pool.mix(index, part, chunks.read, chunks.write)
            mixed.index_copy_(0, chunks.rows, done.reshape(-1, hidden.shape[-1]))
        return mixed


class RowStates:
    """Which slots the rows' next step reads from and writes to, kept on the device between steps.

    read, write: [rows] int64. After a step a row reads what it wrote.
    """

    def __init__(self, pool: StatePool, rows: int) -> None:
        self.pool = pool
        self.read = torch.full((rows,), pool.zero, dtype=torch.int64, device=pool.device)
        self.write = torch.full((rows,), pool.scratch, dtype=torch.int64, device=pool.device)

    def change(self, rows: torch.Tensor, states: Int32, send: Send) -> None:
        """rows: [n], states: [n, 2] slots to read from and to write to."""
        [slots] = send(states.astype(np.int64))
        self.read[rows], self.write[rows] = slots.unbind(1)

    def of_step(self, position: torch.Tensor) -> StatesOfRows:
        """Of the first rows; one that has ended, and has position -1, changes nobody's state."""
        live = position >= 0
        count = len(position)
        return StatesOfRows(
            self.pool,
            torch.where(live, self.read[:count], self.pool.zero),
            torch.where(live, self.write[:count], self.pool.scratch),
        )

    def advance(self, position: torch.Tensor) -> None:
        """The first rows' step is done, of those that took part: others have position -1."""
        count = len(position)
        self.read[:count] = torch.where(position >= 0, self.write[:count], self.read[:count])

    def set_aside(self) -> None:
        """For a step that is run only to see it run, and undone: it may move no state."""
        self.read.fill_(self.pool.zero)
        self.write.fill_(self.pool.scratch)
