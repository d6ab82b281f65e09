"""The states of mixers on the device: one pool of slots, and how a step changes those it is given.

A step gathers the states of its sequences by slot, lets the mixer change these copies, and scatters
them to other slots or the same; where there is a kernel for it, it reads and writes the slots
itself. So a child, or a row, goes on from its parent's state without another copy, and nobody's
state is changed under them.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.mixers import (
    RECURRENT,
    Key,
    Mixer,
    StateInPlace,
    States,
    has_one_decay,
    keys_in_place,
)

_TRIED = 2  # sequences on which a kernel is tried
_DIFFERENCE = 0.02  # of the largest number, by which bfloat16 rounds a mixer's output at most


@dataclass(frozen=True)
class Kernels:
    """That change states where they lie: of kernels/delta_rule.py and kernels/conv_step.py."""

    delta_rule: Callable[..., torch.Tensor]
    settle: Callable[..., None]
    room_for_tokens: Callable[[int, int, torch.dtype], int]
    convolve: Callable[..., torch.Tensor]


@dataclass(frozen=True)
class StepSlots:
    """Where the sequences of a decoding step, one token each, have their states: int64 [n] slots.

    read, write: before and after the step. start: where those go on from that keep their tokens:
    the states of their prompts. kept: int32 [n] how many tokens a sequence keeps in its slot
    `write`, -1 where that has its state. settling: int32 [n] how many tokens become the state
    there, 0 for none: after a step in place, and before one that copies.
    in_place: nobody reads what another one writes.
    """

    read: torch.Tensor
    write: torch.Tensor
    start: torch.Tensor
    kept: torch.Tensor
    settling: torch.Tensor
    in_place: bool


class StatePool:
    """tensors[mixer][state]: [num_slots + 2, *shape], the last two slots zero and scratch.

    kernels: for states that a step changes where they lie, which spares the copies of them; None:
    there are none for the device. They are tried on each kind of mixer, and one that fails or
    differs from the mixer's own code is not taken, and a warning says so.

    room: how many tokens a sequence may keep before they become its state; 0 where it keeps none.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        num_slots: int,
        device: torch.device,
        kernels: Kernels | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """dtype: of what the mixers compute."""
        self.mixers = mixers
        self.zero, self.scratch = num_slots, num_slots + 1
        self.device = device
        self.tensors = [mixer.fresh(num_slots + 2, device).tensors for mixer in mixers]
        self._kernels = kernels
        self._dtype = dtype
        self._in_place: dict[type, frozenset[Key]] = {}  # by the mixers' type
        self._key_heads: dict[type, int] = {}  # of mixers whose sequences keep tokens
        self.room = min(map(self._room, range(len(mixers))), default=0)

    def _room(self, index: int) -> int:
        mixer = self.mixers[index]
        if self._kernels is None or not self._may_keep(mixer):
            return 0
        _, key_size, value_size = self.tensors[index][RECURRENT].shape[1:]
        return self._kernels.room_for_tokens(key_size, value_size, self._dtype)

    def _may_keep(self, mixer: Mixer) -> bool:
        return RECURRENT in keys_in_place(mixer) and has_one_decay(mixer)

    def mix(
        self,
        index: int,
        hidden: torch.Tensor,
        read: torch.Tensor,
        write: torch.Tensor,
        decoding: bool = False,
    ) -> torch.Tensor:
        """hidden: [sequences, tokens, size] -> [sequences, tokens, width], as `Mixer.run` has it.

        read, write: [sequences] slots.
        """
        pool = self.tensors[index]
        states = States({key: tensor.index_select(0, read) for key, tensor in pool.items()})
        mixed = self.mixers[index].run(hidden, states, decoding)
        for key, tensor in pool.items():
            tensor.index_copy_(0, write, states.tensors[key].to(tensor.dtype))
        return mixed

    def step(self, index: int, hidden: torch.Tensor, slots: StepSlots) -> torch.Tensor:
        """hidden: [sequences, 1, size] -> [sequences, 1, width]: a decoding step's."""
        pool, taken = self.tensors[index], self._taken(index, hidden)
        if not (slots.in_place and taken):
            self._settle(index, pool, slots, taken)
            return self.mix(index, hidden, slots.read, slots.write, decoding=True)
        mixed = self._mix_in_place(index, hidden, pool, slots, taken)
        self._settle(index, pool, slots, taken)
        return mixed

    def _settle(
        self,
        index: int,
        pool: dict[Key, torch.Tensor],
        slots: StepSlots,
        taken: frozenset[Key],
    ) -> None:
        key_heads = self._key_heads.get(type(self.mixers[index].module))
        if RECURRENT in taken and key_heads is not None:
            assert self._kernels is not None
            self._kernels.settle(
                pool[RECURRENT], slots.start, slots.write, slots.settling, key_heads, self._dtype
            )

    def _mix_in_place(
        self,
        index: int,
        hidden: torch.Tensor,
        pool: dict[Key, torch.Tensor],
        slots: StepSlots,
        taken: frozenset[Key],
    ) -> torch.Tensor:
        """taken: the states that change where they lie."""
        mixer = self.mixers[index]
        assert self._kernels is not None
        in_place: dict[Key, StateInPlace] = {}
        for key in taken:
            if key != RECURRENT:
                in_place[key] = _Convolved(self._kernels.convolve, pool[key], slots)
            elif self._may_keep(mixer):
                told = partial(self._key_heads.__setitem__, type(mixer.module))
                in_place[key] = _Kept(self._kernels.delta_rule, pool[key], slots, self._dtype, told)
            else:
                in_place[key] = _Changed(self._kernels.delta_rule, pool[key], slots)
        copied = {key: tensor for key, tensor in pool.items() if key not in taken}
        states = States({key: t.index_select(0, slots.read) for key, t in copied.items()}, in_place)
        mixed = mixer.run(hidden, states, decoding=True)
        for key, tensor in copied.items():
            tensor.index_copy_(0, slots.write, states.tensors[key].to(tensor.dtype))
        return mixed

    def _taken(self, index: int, hidden: torch.Tensor) -> frozenset[Key]:
        """The states of a mixer that kernels change in place, once they were tried."""
        mixer = self.mixers[index]
        kind = type(mixer.module)
        if self._kernels is None:
            return frozenset()
        if kind not in self._in_place:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return frozenset()  # a step runs once before it is captured
            every = keys_in_place(mixer)
            groups = (every & {RECURRENT}, every - {RECURRENT})
            self._in_place[kind] = frozenset[Key]().union(
                *(keys for keys in groups if keys and self._is_same(index, hidden[:_TRIED], keys))
            )
        return self._in_place[kind]

    def _is_same(self, index: int, hidden: torch.Tensor, taken: frozenset[Key]) -> bool:
        """Whether kernels give what the mixer's own code does, on a few sequences' states.

        They are random: a step's states may all be zero, from which many a rule gives the same.
        """
        mixer, count = self.mixers[index], len(hidden)
        generator = torch.Generator(self.device).manual_seed(0)
        before = {
            key: torch.randn(
                (2 * count, *tensor.shape[1:]), generator=generator, device=self.device
            ).to(tensor.dtype)
            for key, tensor in self.tensors[index].items()
        }
        states = States({key: tensor[:count].clone() for key, tensor in before.items()})
        expected = mixer.run(hidden, states, decoding=True)
        errors = _kernel_errors()
        try:
            close = all(
                self._gives(index, hidden, dict(before), slots, taken, expected, states)
                for slots in _trials(count, self.device, self.room > 0)
            )
            reason = "it differs from the model's own code"
        except errors as error:
            if is_out_of_memory(error):
                raise
            close, reason = False, (str(error).strip() or type(error).__name__).splitlines()[0]
        if not close:
            warnings.warn(f"states are copied in every step: {reason:.200}", stacklevel=2)
        return close

    def _gives(
        self,
        index: int,
        hidden: torch.Tensor,
        before: dict[Key, torch.Tensor],
        slots: StepSlots,
        taken: frozenset[Key],
        expected: torch.Tensor,
        states: States,
    ) -> bool:
        """Whether a step in place from `before` ends with what is expected, and these states."""
        pool = {key: tensor.clone() for key, tensor in before.items()}
        mixed = self._mix_in_place(index, hidden, pool, slots, taken)
        self._settle(index, pool, slots, taken)
        return _are_close(mixed, expected) and all(
            _are_close(pool[key][slots.write], states.tensors[key]) for key in taken
        )


def _trials(count: int, device: torch.device, keeps: bool) -> list[StepSlots]:
    """Steps of `count` sequences, each from a slot to another: at once, and by a token kept."""
    read = torch.arange(count, device=device)
    kept, settling = torch.full_like(read, -1).int(), torch.zeros_like(read).int()
    at_once = StepSlots(read, read + count, read, kept, settling, in_place=True)
    return [at_once, replace(at_once, kept=settling, settling=settling + 1)] if keeps else [at_once]


def _are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """NaN is close to nothing."""
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= _DIFFERENCE * expected.float().abs().max())


def _kernel_errors() -> tuple[type[Exception], ...]:
    """What is raised for a kernel that does not compile, or takes too much shared memory.

    And for a mixer that does more with its state than a kernel does for it.
    """
    found: list[type[Exception]] = [
        RuntimeError, AssertionError, TypeError, AttributeError, KeyError,
    ]  # fmt: skip
    if importlib.util.find_spec("triton") is not None:
        from triton.errors import TritonError

        found.append(TritonError)
    return tuple(found)


@dataclass(frozen=True)
class _Changed(StateInPlace):
    """The state of a delta rule. states: [slots, heads, K, V]."""

    kernel: Callable[..., torch.Tensor]
    states: torch.Tensor
    slots: StepSlots

    def step(self, *args: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """args: q, k: [sequences, 1, key heads, K]; v: [sequences, 1, heads, V]; kwargs: g, the
        decays' logs, [sequences, 1, heads] or [sequences, 1, heads, K]; beta: [sequences, 1, heads]
        """
        parts = [x[:, 0] for x in (*args, kwargs["g"], kwargs["beta"])]
        out = self._run(*parts)[:, None]
        return out, out  # some models convert the next state, which is where it belongs

    def _run(self, *parts: torch.Tensor) -> torch.Tensor:
        return self.kernel(*parts, self.states, self.slots.read, self.slots.write)


@dataclass(frozen=True)
class _Kept(_Changed):
    """One that sequences keep tokens for. dtype: of these; told: how many heads their keys have."""

    dtype: torch.dtype
    told: Callable[[int], None]

    def _run(self, *parts: torch.Tensor) -> torch.Tensor:
        _, key, value, *_ = parts
        if value.dtype != self.dtype:
            raise RuntimeError(f"values are in {value.dtype}, and the model in {self.dtype}")
        self.told(key.shape[1])
        slots = self.slots
        read = torch.where(slots.kept < 0, slots.read, slots.start)
        return self.kernel(*parts, self.states, read, slots.write, slots.kept)


@dataclass(frozen=True)
class _Convolved(StateInPlace):
    """A convolution's last inputs. states: [slots, channels, columns]."""

    kernel: Callable[..., torch.Tensor]
    states: torch.Tensor
    slots: StepSlots

    def step(
        self,
        x: torch.Tensor,
        state: StateInPlace,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """x: [sequences, channels, 1] -> likewise: what transformers' function of this name does
        with a copy of the state."""
        slots = self.slots
        return self.kernel(x, self.states, slots.read, slots.write, weight, bias, activation)


def step_kernels(device: torch.device) -> Kernels | None:
    """The kernels with which states go on where they lie, where the device runs them."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from sharegen.kernels.conv_step import conv_step
    from sharegen.kernels.delta_rule import delta_rule_step, room_for_tokens, settle

    return Kernels(delta_rule_step, settle, room_for_tokens, conv_step)
