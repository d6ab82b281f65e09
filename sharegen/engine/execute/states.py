"""The states of mixers on the device: one pool of slots, and how a step changes those it is given.

A step gathers the states of its sequences by slot, lets the mixer change these copies, and scatters
them to other slots or the same; where there is a kernel for it, it reads and writes the slots
itself. So a child, or a row, goes on from its parent's state without another copy, and nobody's
state is changed under them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.execute.state_kernels import ApplyRule, Convolve, Keep, Kernels, kernel_errors
from sharegen.engine.execute.step_slots import Places, StepSlots
from sharegen.engine.model.states.in_place import RECURRENT, Change, Key, changing, in_place
from sharegen.engine.model.states.mixers import (
    Mixer,
    States,
    StateSpec,
    has_one_decay,
    keys_in_chunks,
    keys_in_place,
)

_TRIED, _TRIED_TOKENS = 2, 6  # sequences, and tokens of each, on which a kernel is tried
_DIFFERENCE = 0.02  # of the largest number, by which bfloat16 rounds a mixer's output at most


class _Kind(NamedTuple):
    """What mixers have in common whose states are settled together."""

    module: type
    spec: StateSpec


class StatePool:
    """The states of all mixers, in slots, and the steps that change them.

    A convolution's last inputs [channels, columns] lie as a ring, [columns, channels]: token p's
    are column p mod their number, so that a step reads and writes no more than it must.

    Args:
        mixers: the layers that keep states.
        num_slots: slots for the states of nodes and rows.
        device: where they lie.
        kernels: change states where they lie, which spares copies of them; None where there are
            none for the device. They are tried on each kind of mixer; one that fails, or differs
            from the mixer's own code, is not taken, and a warning says so. The same holds for
            mixers that are compiled around them.
        dtype: what the mixers compute in.

    Attributes:
        tensors: for each mixer and state [num_slots + 2, *shape].
        zero, scratch: the two slots beyond: one that stays zero, and one that nobody reads.
        room: how many tokens a sequence may keep before they become its state; 0 where it keeps
            none.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        num_slots: int,
        device: torch.device,
        kernels: Kernels | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.mixers = mixers
        self.zero, self.scratch = num_slots, num_slots + 1
        self.device = device
        self.tensors, self._together = _allocated(mixers, num_slots + 2, device)
        self._kernels = kernels
        self._dtype = dtype
        self._in_place: dict[type, frozenset[Key]] = {}  # by the mixers' type
        self._in_chunks: dict[type, frozenset[Key]] = {}  # likewise, of a prompt's tokens
        self._compiled: set[type] = set()  # of the mixers whose steps in place are
        self._key_heads: dict[type, int] = {}  # of mixers whose sequences keep tokens
        self.room = min(map(self._room, range(len(mixers))), default=0)

    def _room(self, index: int) -> int:
        mixer = self.mixers[index]
        if self._kernels is None or not _may_keep(mixer):
            return 0
        _, key_size, value_size = self.tensors[index][RECURRENT].shape[1:]
        return self._kernels.room_for_tokens(key_size, value_size, self._dtype)

    def mix(self, index: int, hidden: torch.Tensor, places: Places) -> torch.Tensor:
        """Run a mixer on tokens of prompts.

        Args:
            index: of the mixer.
            hidden: [sequences, tokens, size].
            places: where the sequences have their states.

        Returns:
            [sequences, tokens, width].
        """
        pool, taken = self.tensors[index], self._taken_in_chunks(index, hidden)
        return self._mix_chunk(index, hidden, pool, places, taken)

    def step(self, index: int, hidden: torch.Tensor, slots: StepSlots) -> torch.Tensor:
        """Run a mixer on a decoding step, one token for each sequence.

        Args:
            index: of the mixer.
            hidden: [sequences, 1, size].
            slots: where the sequences have their states.

        Returns:
            [sequences, 1, width].
        """
        pool, taken = self.tensors[index], self._taken(index, hidden)
        if not (slots.in_place and taken):
            if RECURRENT in taken:
                self._settle(type(self.mixers[index].module), pool[RECURRENT][None], slots)
            return self._mix_copies(index, hidden, pool, slots.places, decoding=True)
        compiled = type(self.mixers[index].module) in self._compiled
        return self._mix_in_place(index, hidden, pool, slots, taken, compiled)

    def end_step(self, slots: StepSlots) -> None:
        """Settle what sequences keep, once all mixers have done the step."""
        for kind, states in self._together.items():
            if slots.in_place and RECURRENT in self._in_place.get(kind.module, ()):
                self._settle(kind.module, states, slots)

    def _settle(self, kind: type, states: torch.Tensor, slots: StepSlots) -> None:
        """Turn kept tokens into states; states: [mixers, slots, ...], mixers of one kind."""
        key_heads = self._key_heads.get(kind)
        if key_heads is not None:
            assert self._kernels is not None
            self._kernels.settle(
                states, slots.start, slots.places.write, slots.settling, key_heads, self._dtype
            )

    def _mix_in_place(
        self,
        index: int,
        hidden: torch.Tensor,
        pool: dict[Key, torch.Tensor],
        slots: StepSlots,
        taken: frozenset[Key],
        compiled: bool,
    ) -> torch.Tensor:
        """Run a step of which the states in `taken` change where they lie, and the rest is copied.

        compiled: whether the step is compiled; then all states are in `taken`.
        """
        mixer = self.mixers[index]
        assert self._kernels is not None
        rule, changes = self._kernels.delta_rule, dict[Key, Change]()
        for key in taken:
            if key != RECURRENT:
                changes[key] = Convolve(self._kernels.convolve, pool[key], slots.places)
            elif _may_keep(mixer):
                told = partial(self._key_heads.__setitem__, type(mixer.module))
                changes[key] = Keep(rule, pool[key], slots, self._dtype, told)
            else:
                changes[key] = ApplyRule(rule, pool[key], slots)
        copied = {key: tensor for key, tensor in pool.items() if key not in taken}
        states = States(slots.places.before(copied), in_place(taken))
        with changing(changes):
            mixed = mixer.step(hidden, states, compiled)
        slots.places.put(copied, states)
        return mixed

    def _mix_copies(
        self,
        index: int,
        hidden: torch.Tensor,
        pool: dict[Key, torch.Tensor],
        places: Places,
        decoding: bool = False,
    ) -> torch.Tensor:
        """Run a mixer on copies of all of its states."""
        states = States(places.before(pool))
        mixed = self.mixers[index].run(hidden, states, decoding)
        places.put(pool, states)
        return mixed

    def _mix_chunk(
        self,
        index: int,
        hidden: torch.Tensor,
        pool: dict[Key, torch.Tensor],
        places: Places,
        taken: frozenset[Key],
    ) -> torch.Tensor:
        """Run a mixer on prompts; the states in `taken` change where they lie."""
        changes = dict[Key, Change]()
        for key in taken:
            assert self._kernels is not None
            changes[key] = Convolve(self._kernels.convolve_chunk, pool[key], places)
        copied = {key: tensor for key, tensor in pool.items() if key not in taken}
        states = States(places.before(copied), in_place(taken))
        with changing(changes):
            mixed = self.mixers[index].run(hidden, states)
        places.put(copied, states)
        return mixed

    def _taken_in_chunks(self, index: int, hidden: torch.Tensor) -> frozenset[Key]:
        """Return the states that a kernel changes for tokens of prompts; it is tried first."""
        mixer = self.mixers[index]
        kind = type(mixer.module)
        if self._kernels is None or (kind not in self._in_chunks and hidden.shape[1] == 1):
            return frozenset()
        if kind not in self._in_chunks:
            keys, part = keys_in_chunks(mixer), hidden[:_TRIED, :_TRIED_TOKENS]
            is_same = bool(keys) and self._is_same_chunk(index, part, keys)
            self._in_chunks[kind] = keys if is_same else frozenset()
        return self._in_chunks[kind]

    def _taken(self, index: int, hidden: torch.Tensor) -> frozenset[Key]:
        """Return the states that kernels change in place; they are tried first."""
        mixer = self.mixers[index]
        kind = type(mixer.module)
        if self._kernels is None:
            return frozenset()
        if kind not in self._in_place:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return frozenset()  # a step runs once before it is captured
            every = keys_in_place(mixer)
            groups = (every & {RECURRENT}, every - {RECURRENT})
            taken = frozenset[Key]().union(
                *(keys for keys in groups if keys and self._is_same(index, hidden[:_TRIED], keys))
            )
            self._in_place[kind] = taken
            may_be_compiled = mixer.compiled is not None and taken == mixer.keys
            if may_be_compiled and self._is_same(index, hidden[:_TRIED], taken, compiled=True):
                self._compiled.add(kind)
        return self._in_place[kind]

    def _is_same(
        self, index: int, hidden: torch.Tensor, taken: frozenset[Key], compiled: bool = False
    ) -> bool:
        """Return whether kernels give what the mixer's own code does, on a few sequences."""
        trials = _trials(len(hidden), self.device, self.room > 0)
        before = self._random_states(index, 2 * len(hidden))
        states = States(trials[0].places.before(before))
        expected = self.mixers[index].run(hidden, states, decoding=True)
        what = "mixers run uncompiled" if compiled else "states are copied in every step"
        return _holds(what, lambda: all(
            self._gives(index, hidden, dict(before), slots, taken, compiled, expected, states)
            for slots in trials
        ))  # fmt: skip

    def _is_same_chunk(self, index: int, hidden: torch.Tensor, taken: frozenset[Key]) -> bool:
        """Return the same for some tokens of prompts."""
        count, tokens = hidden.shape[:2]
        read = torch.arange(count, device=self.device)
        places = Places(read, read + count, read + 6, tokens)
        before = self._random_states(index, 2 * count)
        pool = {key: tensor.clone() for key, tensor in before.items()}
        expected = self._mix_copies(index, hidden, before, places)

        def gives() -> bool:
            mixed = self._mix_chunk(index, hidden, pool, places, taken)
            return _are_close(mixed, expected) and all(
                _are_close(pool[key], before[key]) for key in taken
            )

        return _holds("states are copied for every chunk of a prompt", gives)

    def _random_states(self, index: int, count: int) -> dict[Key, torch.Tensor]:
        """Return random states [count, *shape]: from zeros many a rule gives the same."""
        generator = torch.Generator(self.device).manual_seed(0)
        return {
            key: torch.randn(
                (count, *tensor.shape[1:]),
                generator=generator,
                dtype=torch.float32,
                device=self.device,
            ).to(tensor.dtype)
            for key, tensor in self.tensors[index].items()
        }

    def _gives(
        self,
        index: int,
        hidden: torch.Tensor,
        before: dict[Key, torch.Tensor],
        slots: StepSlots,
        taken: frozenset[Key],
        compiled: bool,
        expected: torch.Tensor,
        states: States,
    ) -> bool:
        """Return whether a step in place from `before` gives what is expected, and these states."""
        pool = {key: tensor.clone() for key, tensor in before.items()}
        mixed = self._mix_in_place(index, hidden, pool, slots, taken, compiled)
        if RECURRENT in taken:
            self._settle(type(self.mixers[index].module), pool[RECURRENT][None], slots)
        after = slots.places.after(pool)
        return _are_close(mixed, expected) and all(
            _are_close(after[key], states.tensors[key]) for key in taken
        )


def _holds(otherwise: str, gives: Callable[[], bool]) -> bool:
    """Return whether kernels give what they must; else warn what is done instead, and why."""
    errors = kernel_errors()
    try:
        close, reason = gives(), "it differs from the model's own code"
    except errors as error:
        if is_out_of_memory(error):
            raise
        close, reason = False, (str(error).strip() or type(error).__name__).splitlines()[0]
    if not close:
        warnings.warn(f"{otherwise}: {reason:.200}", stacklevel=4)
    return close


def _may_keep(mixer: Mixer) -> bool:
    return RECURRENT in keys_in_place(mixer) and has_one_decay(mixer)


def _allocated(
    mixers: Sequence[Mixer], slots: int, device: torch.device
) -> tuple[list[dict[Key, torch.Tensor]], dict[_Kind, torch.Tensor]]:
    """Allocate zeros for the states of all mixers.

    Returns:
        For each mixer its states, [slots, *shape]; and for each kind of mixer whose sequences may
        keep tokens, and which are settled together, [mixers of the kind, slots, *shape].
    """
    kinds = [_Kind(type(mixer.module), mixer.spec(RECURRENT)) if _may_keep(mixer) else None
             for mixer in mixers]  # fmt: skip
    together = {
        kind: torch.zeros((count, slots, *kind.spec.shape), dtype=kind.spec.dtype, device=device)
        for kind, count in Counter(kinds).items()
        if kind is not None
    }
    parts = {kind: iter(states) for kind, states in together.items()}
    tensors = []
    for mixer, kind in zip(mixers, kinds, strict=True):
        tensors.append({
            spec.key: next(parts[kind]) if kind is not None and spec.key == RECURRENT
            else torch.zeros((slots, *_lying(spec)), dtype=spec.dtype, device=device)
            for spec in mixer.states
        })  # fmt: skip
    return tensors, together


def _lying(spec: StateSpec) -> tuple[int, ...]:
    """Return the shape that a state has in its slot."""
    return spec.shape if spec.key == RECURRENT else spec.shape[::-1]


def _trials(count: int, device: torch.device, keeps: bool) -> list[StepSlots]:
    """Make steps to try: `count` sequences, each from a slot to another one.

    keeps: whether a second step, in which sequences keep their token, is tried, too.
    """
    read = torch.arange(count, device=device)
    kept, settling = torch.full_like(read, -1).int(), torch.zeros_like(read).int()
    at_once = StepSlots(Places(read, read + count, read + 6), read, kept, settling, in_place=True)
    return [at_once, replace(at_once, kept=settling, settling=settling + 1)] if keeps else [at_once]


def _are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two tensors differ by rounding alone; NaN is close to nothing."""
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= _DIFFERENCE * expected.float().abs().max())
