"""Samples whose first token is drawn and that wait for a row, in the order in which they start.

A request may say how many of its samples are required: wanted whatever comes of them. The others
are speculative. They start where a row would be empty, and so that a problem that is decided
without them has begun as few of them as can be: the nearest to being required first, of all
requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


class ReadyQueue:
    """The preempted first, then what is required, request by request, then what is speculative.

    num_required: with those that were preempted, and rows_required: the rows that they take;
    num_speculative. Those that have ended since are not counted and passed over.
    """

    def __init__(self) -> None:
        self._preempted: deque[Sequence] = deque()
        self._required: list[
            tuple[int, int, Sequence]
        ] = []  # a heap: the group's place, the sample
        self._speculative: dict[SequenceGroup, deque[Sequence]] = {}
        self._nearest: list[tuple[int, int, SequenceGroup]] = []  # a heap: the first of each group
        self._drawn = 0  # groups so far
        self.num_required = 0
        self.rows_required = 0
        self.num_speculative = 0

    def __len__(self) -> int:
        return self.num_required + self.num_speculative

    def __iter__(self) -> Iterator[Sequence]:
        self._required.sort()  # a sorted list is a heap
        yield from self.required()
        for speculative in self._speculative.values():
            yield from (sequence for sequence in speculative if not sequence.finished)

    def required(self) -> Iterator[Sequence]:
        """The samples that are required, in no order."""
        yield from (sequence for sequence in self._preempted if not sequence.finished)
        yield from (sequence for *_, sequence in self._required if not sequence.finished)

    # -- in -----------------------------------------------------------------------------------

    def add_samples(self, group: SequenceGroup, sequences: Iterable[Sequence]) -> None:
        """Samples of a group, by index, whose first tokens have come."""
        self._drawn += 1
        group.place = self._drawn
        speculative: deque[Sequence] = deque()
        for sequence in sequences:
            sequence.waits = True
            if group.is_required(sequence.sample):
                self._push_required(sequence)
            else:
                speculative.append(sequence)
        if speculative:
            self._speculative[group] = speculative
            self.num_speculative += len(speculative)
            self._note(group)

    @property
    def has_preempted(self) -> bool:
        """Whether one waits that had a row."""
        return bool(self._preempted)

    def put_back(self, sequence: Sequence) -> None:
        """A sample was preempted: it is the first again."""
        sequence.waits = True
        self._preempted.appendleft(sequence)
        self._count_required(sequence, 1)

    def call(self, group: SequenceGroup) -> None:
        """More of a group's samples are required than were."""
        speculative = self._speculative.get(group)
        if speculative is None:
            return
        while speculative and group.is_required(speculative[0].sample):
            sequence = speculative.popleft()
            if not sequence.finished:
                self.num_speculative -= 1
                self._push_required(sequence)
        self._note(group)

    def _push_required(self, sequence: Sequence) -> None:
        heappush(self._required, (sequence.group.place, sequence.sample, sequence))
        self._count_required(sequence, 1)

    def _count_required(self, sequence: Sequence, by: int) -> None:
        self.num_required += by
        self.rows_required += by * sequence.group.request.rows

    def _note(self, group: SequenceGroup) -> None:
        """Note the first speculative sample of a group; a group without any is dropped."""
        speculative = self._speculative[group]
        while speculative and speculative[0].finished:
            speculative.popleft()
        if speculative:
            heappush(self._nearest, (group.distance(speculative[0].sample), group.place, group))
        else:
            del self._speculative[group]

    # -- out ----------------------------------------------------------------------------------

    def first(self, speculative: bool = False) -> Sequence | None:
        """Who starts next; speculative: where none is required, also one that is not."""
        while self._preempted and self._preempted[0].finished:
            self._preempted.popleft()
        if self._preempted:
            return self._preempted[0]
        while self._required and self._required[0][2].finished:
            heappop(self._required)
        if self._required:
            return self._required[0][2]
        return self._first_speculative() if speculative else None

    def _first_speculative(self) -> Sequence | None:
        while self._nearest:
            distance, _, group = self._nearest[0]
            waiting = self._speculative.get(group)
            has_ended = waiting is not None and waiting[0].finished
            if waiting and not has_ended and group.distance(waiting[0].sample) == distance:
                return waiting[0]
            heappop(self._nearest)  # the group has moved on since
            if has_ended:
                self._note(group)
        return None

    def take(self, sequence: Sequence) -> None:
        """The first one starts."""
        sequence.waits = False
        if self._preempted and self._preempted[0] is sequence:
            self._preempted.popleft()
            self._count_required(sequence, -1)
        elif self._required and self._required[0][2] is sequence:
            heappop(self._required)
            self._count_required(sequence, -1)
        else:
            self._speculative[sequence.group].popleft()
            self.num_speculative -= 1
            self._note(sequence.group)

    def forget(self, sequence: Sequence) -> None:
        """One that waits has ended."""
        assert sequence.finished and sequence.waits
        sequence.waits = False
        if sequence.joined >= 0 or sequence.group.is_required(sequence.sample):
            self._count_required(sequence, -1)
        else:
            self.num_speculative -= 1

    def clear(self) -> None:
        self._preempted.clear()
        self._required.clear()
        self._speculative.clear()
        self._nearest.clear()
        self.num_required = self.rows_required = self.num_speculative = 0

    def check_integrity(self) -> None:
        """Assert that the counts are those of what waits, and that nothing waits twice."""
        waiting = list(self)
        assert len(waiting) == len({id(sequence) for sequence in waiting}) == len(self)
        rows = [sequence.group.request.rows for sequence in self.required()]
        assert (len(rows), sum(rows)) == (self.num_required, self.rows_required)
        assert all(sequence.waits and sequence.row < 0 for sequence in waiting)
        assert (self.first(speculative=True) is None) == (not waiting)
