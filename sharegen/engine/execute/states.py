"""The states of mixers on the device: one pool of slots, and which of them a step reads and writes.

A step gathers the states of its sequences by slot, lets the mixer change these copies, and scatters
them to other slots or the same; where there is a kernel for it, it reads and writes the slots
itself. So a child, or a row, goes on from its parent's state without
another copy, and nobody's state is changed under them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sharegen.engine.batch import Int32, MixedChunks
from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.mixers import RECURRENT, Key, Mixer, States, steps_in_place

Send = Callable[..., tuple[torch.Tensor, ...]]
Step = Callable[..., torch.Tensor]
"""As `kernels/delta_rule.py` has it."""

_TRIED = 2  # sequences on which a kernel is tried
_DIFFERENCE = 0.02  # of the largest number, by which bfloat16 rounds a mixer's output at most


class StatePool:
    """tensors[mixer][state]: [num_slots + 2, *shape], the last two slots zero and scratch.

    step: the kernel for states that a step changes where they lie, which spares the copies of what
    is large; None: there is none for the device. It is tried on each kind of mixer, and where it
    fails or differs from the mixer's own, it is not taken, and a warning says so.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        num_slots: int,
        device: torch.device,
        step: Step | None = None,
    ) -> None:
        self.mixers = mixers
        self.zero, self.scratch = num_slots, num_slots + 1
        self.device = device
        self.tensors = [mixer.fresh(num_slots + 2, device).tensors for mixer in mixers]
        self._step = step
        self._in_place: dict[type, bool] = {}  # by the mixers' type

    def mix(
        self,
        index: int,
        hidden: torch.Tensor,
        read: torch.Tensor,
        write: torch.Tensor,
        in_place: bool = False,
    ) -> torch.Tensor:
        """hidden: [sequences, tokens, size] -> [sequences, tokens, width], as `Mixer.run` has it.

        read, write: [sequences] slots.

        in_place: nobody reads what another one writes, and each has one token.
        """
        pool = self.tensors[index]
        if in_place and self._goes_in_place(index, hidden, read):
            return self._mix_in_place(index, hidden, pool, read, write)
        states = States({key: tensor.index_select(0, read) for key, tensor in pool.items()})
        mixed = self.mixers[index].run(hidden, states)
        for key, tensor in pool.items():
            tensor.index_copy_(0, write, states.tensors[key].to(tensor.dtype))
        return mixed

    def _mix_in_place(
        self,
        index: int,
        hidden: torch.Tensor,
        pool: dict[Key, torch.Tensor],
        read: torch.Tensor,
        write: torch.Tensor,
    ) -> torch.Tensor:
        assert self._step is not None
        others = {key: tensor for key, tensor in pool.items() if key != RECURRENT}
        where = _InSlots(self._step, pool[RECURRENT], read, write)
        states = States({key: t.index_select(0, read) for key, t in others.items()}, where)
        mixed = self.mixers[index].run(hidden, states)
        for key, tensor in others.items():
            tensor.index_copy_(0, write, states.tensors[key].to(tensor.dtype))
        return mixed

    def _goes_in_place(self, index: int, hidden: torch.Tensor, read: torch.Tensor) -> bool:
        kind = type(self.mixers[index].module)
        if self._step is None:
            return False
        if kind not in self._in_place:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return False  # a step runs once before it is captured
            self._in_place[kind] = steps_in_place(self.mixers[index]) and self._is_same(
                index, hidden[:_TRIED]
            )
        return self._in_place[kind]

    def _is_same(self, index: int, hidden: torch.Tensor) -> bool:
        """Whether the kernel gives what the mixer's own code does, on a few sequences' states.

        They are random: a step's states may all be zero, from which many a rule gives the same.
        """
        every = torch.arange(len(hidden), device=self.device)
        generator = torch.Generator(self.device).manual_seed(0)
        ways: list[dict[Key, torch.Tensor]] = [{}, {}]
        for key, tensor in self.tensors[index].items():
            shape = (len(hidden), *tensor.shape[1:])
            numbers = torch.randn(shape, generator=generator, device=self.device).to(tensor.dtype)
            for way in ways:
                way[key] = numbers.clone()
        states = States(dict(ways[0]))
        expected = self.mixers[index].run(hidden, states)
        errors = _kernel_errors()
        try:
            mixed = self._mix_in_place(index, hidden, ways[1], every, every)
            close = _are_close(mixed, expected)
            close &= _are_close(ways[1][RECURRENT], states.tensors[RECURRENT])
            reason = "it differs from the model's own code"
        except errors as error:
            if is_out_of_memory(error):
                raise
            close, reason = False, (str(error).strip() or type(error).__name__).splitlines()[0]
        if not close:
            warnings.warn(f"states are copied in every step: {reason:.200}", stacklevel=2)
        return close


def _are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN is close to nothing."""
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= _DIFFERENCE * expected.float().abs().max())


def _kernel_errors() -> tuple[type[Exception], ...]:
    """What is raised for a kernel that does not compile, or takes too much shared memory."""
    found: list[type[Exception]] = [RuntimeError, AssertionError]
    if importlib.util.find_spec("triton") is not None:
        from triton.errors import TritonError

        found.append(TritonError)
    return tuple(found)


@dataclass(frozen=True)
class _InSlots:
    """A `StateInPlace`: pool: [slots, heads, K, V]; read, write: [sequences]."""

    kernel: Step
    pool: torch.Tensor
    read: torch.Tensor
    write: torch.Tensor

    def step(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        decay: torch.Tensor, beta: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        parts = (x[:, 0] for x in (q, k, v, decay, beta))
        return self.kernel(*parts, self.pool, self.read, self.write)[:, None]


def step_kernel(device: torch.device) -> Step | None:
    """The kernel with which states go on where they lie, where the device runs it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from sharegen.kernels.delta_rule import delta_rule_step

    return delta_rule_step


@dataclass(frozen=True)
class StatesOfRows:
    """A decoding step's: every row is a sequence of one token. in_place: see `StatePool.mix`."""

    pool: StatePool
    read: torch.Tensor
    write: torch.Tensor
    in_place: bool

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden[:, None]
        return self.pool.mix(index, hidden, self.read, self.write, self.in_place)[:, 0]


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
        width = self._pool.mixers[index].width(hidden.shape[-1])
        mixed = hidden.new_zeros(len(hidden), width)  # rows that pad the batch are of no chunk
        for chunks in self._chunks:
            part = hidden.index_select(0, chunks.rows).view(chunks.count, -1, hidden.shape[-1])
            done = self._pool.mix(index, part, chunks.read, chunks.write)
            mixed.index_copy_(0, chunks.rows, done.flatten(0, 1))
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

    def of_step(self, position: torch.Tensor, in_place: bool = False) -> StatesOfRows:
        """Of the first rows; one that has ended, and has position -1, changes nobody's state.

        in_place: no row goes on from what another row writes in this step, as beams do.
        """
        live = position >= 0
        count = len(position)
        return StatesOfRows(
            self.pool,
            torch.where(live, self.read[:count], self.pool.zero),
            torch.where(live, self.write[:count], self.pool.scratch),
            in_place,
        )

    def advance(self, position: torch.Tensor) -> None:
        """The first rows' step is done, of those that took part: others have position -1."""
        count = len(position)
        self.read[:count] = torch.where(position >= 0, self.write[:count], self.read[:count])

    def set_aside(self) -> None:
        """For a step that is run only to see it run, and undone: it may move no state."""
        self.read.fill_(self.pool.zero)
        self.write.fill_(self.pool.scratch)
