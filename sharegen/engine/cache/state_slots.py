"""Who owns which slots for the states of mixers: one for a node, and one for every row.

Numbers only; the tensors live in `execute/states.py`. A state is what a sequence has reached, so a
node has one for all that go on from its end, and whoever goes on writes to a slot of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

NO_SLOT = -1


class StateSlots:
    """`num_slots` slots, numbered from 0; None of a model that keeps no states.

    Such a model needs no slot, and has one of nothing for all who ask. zero: a slot that holds the
    state of no tokens, and is never written; scratch: one that nobody reads.
    """

    def __init__(self, num_slots: int | None = None) -> None:
        self.are_kept = num_slots is not None
        self.num_slots = num_slots or 0
        self.zero, self.scratch = self.num_slots, self.num_slots + 1
        self.peak_used = 0
        self._free = list(range(self.num_slots))[::-1]

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free)

    def has(self, count: int) -> bool:
        """Whether so many are free."""
        return not self.are_kept or len(self._free) >= count

    def holds(self, count: int) -> bool:
        """Whether so many would be free if none were taken."""
        return not self.are_kept or self.num_slots >= count

    def take(self) -> int:
        """A slot, which must be free."""
        if not self.are_kept:
            return NO_SLOT
        slot = self._free.pop()
        self.peak_used = max(self.peak_used, self.num_used)
        return slot

    def give_back(self, slot: int) -> None:
        if slot != NO_SLOT:
            self._free.append(slot)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Assert that every slot is free or has one owner. owned: of all owners."""
        held = [slot for slot in owned if slot != NO_SLOT]
        assert sorted([*held, *self._free]) == list(range(self.num_slots)), "slots of states differ"
