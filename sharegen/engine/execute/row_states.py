"""Which slots of states a step reads and writes: the rows' of decoding, the chunks' of a prefill.

Where kernels change states in place, a row's first tokens after its prompt are kept in its slot,
and its prompt's state is read where it is, by all rows of the prompt: see kernels/delta_rule.py.
How many a row keeps follows from where it is; only a step that copies states, as beams need it,
settles its rows' states before, and from there on they are their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sharegen.engine.core.batch import Int32, Int64, MixedChunks
from sharegen.engine.execute.states import StatePool
from sharegen.engine.execute.step_slots import Places, StepSlots

Send = Callable[..., tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class StatesOfRows:
    """A decoding step's: every row is a sequence of one token."""

    pool: StatePool
    slots: StepSlots

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        return self.pool.step(index, hidden[:, None], self.slots)[:, 0]

    def end(self) -> None:
        """Settle the states, once all mixers have done the step."""
        self.pool.end_step(self.slots)


@dataclass(frozen=True)
class _Chunks:
    """Chunks of equal length; rows: [n * length] of n chunks, one after the other."""

    rows: torch.Tensor
    count: int
    places: Places


class StatesOfChunks:
    """The states of a prefill batch; its chunks of equal length are computed together, in their
    order.
    """

    def __init__(
        self,
        pool: StatePool,
        mixed: Sequence[MixedChunks],
        positions: Int64,
        send: Send,
        apart: bool = False,
    ) -> None:
        """Make the batch's chunks.

        Args:
            positions: of all tokens of the batch.
            apart: whether each chunk is computed by itself, so that others change no bit of it.
        """
        self._pool = pool
        self._chunks = []
        for chunks in _each(mixed) if apart else mixed:
            rows = (chunks.starts[:, None] + np.arange(chunks.length)).ravel()
            where = (chunks.read, chunks.write, positions[chunks.starts])
            sent, read, write, position = send(rows, *where)
            places = Places(read, write, position, chunks.length)
            self._chunks.append(_Chunks(sent, len(chunks.starts), places))

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        width = self._pool.mixers[index].width(hidden.shape[-1])
        mixed = hidden.new_zeros(len(hidden), width)  # rows that pad the batch are of no chunk
        for chunks in self._chunks:
            part = hidden.index_select(0, chunks.rows).view(chunks.count, -1, hidden.shape[-1])
            done = self._pool.mix(index, part, chunks.places)
            mixed.index_copy_(0, chunks.rows, done.flatten(0, 1))
        return mixed


def _each(mixed: Sequence[MixedChunks]) -> Iterator[MixedChunks]:
    for chunks in mixed:
        for i in range(len(chunks.starts)):
            at = slice(i, i + 1)
            yield replace(
                chunks, starts=chunks.starts[at], read=chunks.read[at], write=chunks.write[at]
            )


class RowStates:
    """Which slots the rows' next step reads from and writes to, kept on the device between steps.

    read, write: [rows] int64. After a step a row reads what it wrote. start: [rows] int64, the
    slots of the states of their prompts. settled: [rows], whether a row that has begun keeps no
    tokens any more, though there is room for some.
    """

    def __init__(self, pool: StatePool, rows: int) -> None:
        self.pool = pool
        self.read = torch.full((rows,), pool.zero, dtype=torch.int64, device=pool.device)
        self.write = torch.full((rows,), pool.scratch, dtype=torch.int64, device=pool.device)
        self.start = torch.full((rows,), pool.zero, dtype=torch.int64, device=pool.device)
        self.settled = torch.zeros(rows, dtype=torch.bool, device=pool.device)

    @property
    def changing(self) -> list[torch.Tensor]:
        """What a step changes, and what `set_aside` does."""
        return [self.read, self.write, self.start, self.settled]

    def change(self, rows: torch.Tensor, states: Int32, send: Send) -> None:
        """Note the slots of rows that changed. rows: [n], states: [n, 3] slots to read from, to
        write to, and of the prompt.
        """
        [slots] = send(states.astype(np.int64))
        self.read[rows], self.write[rows], self.start[rows] = slots.unbind(1)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Rows go to other places: what `change` does not say."""
        self.settled[target] = self.settled[source]

    def of_step(
        self, position: torch.Tensor, output: torch.Tensor, in_place: bool = False
    ) -> StatesOfRows:
        """Return the states of the first rows for one step.

        A row that has ended has position -1 and changes no state.

        output: how many tokens a row has had after its prompt. in_place: no row goes on from what
        another row writes in this step, as beams do.
        """
        live = position >= 0
        count = len(position)
        settled = self.settled[:count] & (output > 0)
        kept = torch.where(live, output, 0).int()
        kept = torch.where((live & settled) | (kept >= self.pool.room), -1, kept)
        if in_place:
            settling = torch.where(kept + 1 == self.pool.room, kept + 1, 0)
        else:
            settling, settled = kept, torch.ones_like(settled)
        self.settled[:count] = torch.where(live, settled, self.settled[:count])
        places = Places(
            torch.where(live, self.read[:count], self.pool.zero),
            torch.where(live, self.write[:count], self.pool.scratch),
            torch.where(live, position, 0).long(),
        )
        slots = StepSlots(
            places,
            torch.where(live, self.start[:count], self.pool.zero),
            kept,
            settling,
            in_place,
        )
        return StatesOfRows(self.pool, slots)

    def advance(self, position: torch.Tensor) -> None:
        """The first rows' step is done, of those that took part: others have position -1."""
        count = len(position)
        self.read[:count] = torch.where(position >= 0, self.write[:count], self.read[:count])

    def set_aside(self) -> None:
        """Prepare for a step that is run only to see it run, and undone: it may move no state."""
        self.read.fill_(self.pool.zero)
        self.write.fill_(self.pool.scratch)
        self.start.fill_(self.pool.zero)
