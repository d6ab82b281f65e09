"""Samples whose first token is drawn and that wait for a row, in the order in which they start.

A request may say how many of its samples are due: wanted whatever comes of them. The others are
early. They start where a row would be empty, and so that a problem that is decided without them
has begun as few of them as can be: the nearest to being due first, of all requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from sharegen.engine.schedule.sequence import Group, Sequence


class Ready:
    """The preempted first, then what is due, request by request, then what is early.

    num_due: with those that were preempted, and rows_due: the rows that they take; num_early. Those
    that have ended since are not counted and passed over.
    """

    def __init__(self) -> None:
        self._preempted: deque[Sequence] = deque()
        self._due: list[tuple[int, int, Sequence]] = []  # a heap: the group's place, the sample
        self._early: dict[Group, deque[Sequence]] = {}
        self._nearest: list[tuple[int, int, Group]] = []  # a heap: the first of each group
        self._drawn = 0  # groups so far
        self.num_due = 0
        self.rows_due = 0
        self.num_early = 0

    def __len__(self) -> int:
        return self.num_due + self.num_early

    def __iter__(self) -> Iterator[Sequence]:
        self._due.sort()  # a sorted list is a heap
        yield from self.due()
        for early in self._early.values():
            yield from (sequence for sequence in early if not sequence.finished)

    def due(self) -> Iterator[Sequence]:
        """Those that are due, in no order."""
        yield from (sequence for sequence in self._preempted if not sequence.finished)
        yield from (sequence for *_, sequence in self._due if not sequence.finished)

    # -- in -----------------------------------------------------------------------------------

    def add(self, group: Group, sequences: Iterable[Sequence]) -> None:
        """Samples of a group, by index, whose first tokens have come."""
        self._drawn += 1
        group.place = self._drawn
        early: deque[Sequence] = deque()
        for sequence in sequences:
            sequence.waits = True
            if group.is_due(sequence.sample):
                self._add_due(sequence)
            else:
                early.append(sequence)
        if early:
            self._early[group] = early
            self.num_early += len(early)
            self._note(group)

    @property
    def has_preempted(self) -> bool:
        """Whether one waits that had a row."""
        return bool(self._preempted)

    def put_back(self, sequence: Sequence) -> None:
        """A sample was preempted: it is the first again."""
        sequence.waits = True
        self._preempted.appendleft(sequence)
        self._count_due(sequence, 1)

    def call(self, group: Group) -> None:
        """More of a group's samples are due than were."""
        early = self._early.get(group)
        if early is None:
            return
        while early and group.is_due(early[0].sample):
            sequence = early.popleft()
            if not sequence.finished:
                self.num_early -= 1
                self._add_due(sequence)
        self._note(group)

    def _add_due(self, sequence: Sequence) -> None:
        heappush(self._due, (sequence.group.place, sequence.sample, sequence))
        self._count_due(sequence, 1)

    def _count_due(self, sequence: Sequence, by: int) -> None:
        self.num_due += by
        self.rows_due += by * sequence.group.request.rows

    def _note(self, group: Group) -> None:
        """Say how early the first of a group's early samples is; without any the group is out."""
        early = self._early[group]
        while early and early[0].finished:
            early.popleft()
        if early:
            heappush(self._nearest, (group.earliness(early[0].sample), group.place, group))
        else:
            del self._early[group]

    # -- out ----------------------------------------------------------------------------------

    def first(self, early: bool = False) -> Sequence | None:
        """Who starts next; early: where none is due, also one that is not."""
        while self._preempted and self._preempted[0].finished:
            self._preempted.popleft()
        if self._preempted:
            return self._preempted[0]
        while self._due and self._due[0][2].finished:
            heappop(self._due)
        if self._due:
            return self._due[0][2]
        return self._first_early() if early else None

    def _first_early(self) -> Sequence | None:
        while self._nearest:
            earliness, _, group = self._nearest[0]
            waiting = self._early.get(group)
            has_ended = waiting is not None and waiting[0].finished
            if waiting and not has_ended and group.earliness(waiting[0].sample) == earliness:
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
            self._count_due(sequence, -1)
        elif self._due and self._due[0][2] is sequence:
            heappop(self._due)
            self._count_due(sequence, -1)
        else:
            self._early[sequence.group].popleft()
            self.num_early -= 1
            self._note(sequence.group)

    def forget(self, sequence: Sequence) -> None:
        """One that waits has ended."""
        assert sequence.finished and sequence.waits
        sequence.waits = False
        if sequence.joined >= 0 or sequence.group.is_due(sequence.sample):
            self._count_due(sequence, -1)
        else:
            self.num_early -= 1

    def clear(self) -> None:
        self._preempted.clear()
        self._due.clear()
        self._early.clear()
        self._nearest.clear()
        self.num_due = self.rows_due = self.num_early = 0

    def check_integrity(self) -> None:
        """Assert that the counts are those of what waits, and that nothing waits twice."""
        waiting = list(self)
        assert len(waiting) == len({id(sequence) for sequence in waiting}) == len(self)
        rows = [sequence.group.request.rows for sequence in self.due()]
        assert (len(rows), sum(rows)) == (self.num_due, self.rows_due)
        assert all(sequence.waits and sequence.row < 0 for sequence in waiting)
        assert (self.first(early=True) is None) == (not waiting)
