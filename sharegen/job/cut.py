"""The cut of a job into parts that processes do apart: where it costs least.

A part is a span of the problems in tree order, so neighbours in the tree stay together and only
nodes that lie across a boundary are computed twice. Of all cuts into such spans this finds one
whose largest part is the least, and among these takes boundaries that copy few tokens. It depends
only on the tree, the tokens of a problem's samples and the number of parts: every process of a job
finds the same one by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sharegen.engine.cache.prefix_tree import Node, PrefixTree

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """What one process does.

    problems: [num_problems] indices of its prompts, in job order.
    prompt_tokens: of its copy of the nodes that its prompts pass through, each once.
    work: these, and all tokens of its samples.
    """

    problems: Ints
    prompt_tokens: int
    work: int


@dataclass(frozen=True)
class Cut:
    """All parts of a job, the first to the last; prompt_tokens: of its tree, each node once."""

    parts: tuple[Part, ...]
    prompt_tokens: int

    @property
    def copied(self) -> int:
        """Prompt tokens that are computed more than once, for they lie across a boundary."""
        return sum(part.prompt_tokens for part in self.parts) - self.prompt_tokens

    @property
    def imbalance(self) -> float:
        """The largest part's work over the mean."""
        work = [part.work for part in self.parts]
        return max(work) * len(work) / sum(work)

    @property
    def fingerprint(self) -> str:
        """A hash of which problem is in which part."""
        digest = hashlib.blake2b(digest_size=8)
        for part in self.parts:
            digest.update(len(part.problems).to_bytes(8, "little"))
            digest.update(part.problems.astype("<i8").tobytes())
        return digest.hexdigest()


def cut(tree: PrefixTree, problem_tokens: int | Sequence[int], num_parts: int) -> Cut:
    """Cut the problems of a tree into parts of even work.

    problem_tokens: of all samples of a problem, at their full length (at least 1), one for all or
    one for each by their numbers in the tree. Where there are more parts than problems the last
    ones are empty.
    """
    assert np.min(problem_tokens) > 0 and num_parts > 0
    order, starts, ends, lengths = _spans(tree)
    count = len(order)
    tokens = np.asarray(problem_tokens, np.int64)
    # A span [s, e) passes through the nodes that begin before e, less those that end by s.
    begun = _sums_before(starts + 1, lengths, count)
    ended = _sums_before(ends, lengths, count)
    own = np.zeros(count + 1, np.int64)
    np.cumsum(tokens[order] if tokens.ndim else np.full(count, tokens), out=own[1:])
    bounds = _boundaries(own + begun, own + ended, min(num_parts, count))
    bounds += [count] * (num_parts + 1 - len(bounds))
    parts = []
    for s, e in pairwise(bounds):
        shared = int(begun[e] - ended[s]) if s < e else 0
        parts.append(Part(np.sort(order[s:e]), shared, shared + int(own[e] - own[s])))
    return Cut(tuple(parts), int(lengths.sum()))


def copied_by_workers(tree: PrefixTree, workers: int) -> int:
    """Prompt tokens computed more than once if each worker takes a run of adjacent problems.

    They are dealt even runs of problems, and parts of a problem where there are fewer.
    """
    order, starts, ends, lengths = _spans(tree)
    places = np.arange(1, workers) * len(order) / workers
    if workers <= len(order):
        places = np.round(places)
    within = np.searchsorted(places, ends, "left") - np.searchsorted(places, starts, "right")
    return int((lengths * within).sum())


def _spans(tree: PrefixTree) -> tuple[Ints, Ints, Ints, Ints]:
    """The prompts in tree order; for each node the span [start, end) below it, and its length."""
    order: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    lengths: list[int] = []
    stack: list[Node | int] = [*tree.root_nodes[::-1]]
    while stack:
        node = stack.pop()
        if isinstance(node, int):  # all below that node have been seen
            ends[node] = len(order)
            continue
        stack.append(len(starts))
        stack += node.children[::-1]
        starts.append(len(order))
        ends.append(0)
        lengths.append(node.length)
        order += node.requests
    return (
        np.array(order, np.int64),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array(lengths, np.int64),
    )


def _sums_before(places: Ints, values: Ints, count: int) -> Ints:
    """Return [count + 1] sums of the values whose place is at or before each position."""
    sums = np.zeros(count + 1, np.int64)
    np.add.at(sums, places, values)
    return np.cumsum(sums)


def _boundaries(begun: Ints, ended: Ints, num_parts: int) -> list[int]:
    """Where parts begin, and the end of the last; the work of [s, e) is begun[e] - ended[s]."""
    count = len(begun) - 1
    if count == 0:
        return [0]

    def furthest(start: int, most: int) -> int:
        """Where a part of at most so much work ends at the latest."""
        return int(np.searchsorted(begun, most + ended[start], side="right")) - 1

    def suffices(most: int) -> bool:
        place = 0
        for _ in range(num_parts):
            place = furthest(place, most)
        return place == count

    # The least that the largest part can be.
    low, most = int((begun[1:] - ended[:-1]).max()), int(begun[count])
    while low < most:
        middle = (low + most) // 2
        low, most = (low, middle) if suffices(middle) else (middle + 1, most)
    # Where each part begins at the earliest, so that what follows suffices.
    earliest = [count]
    for _ in range(num_parts - 1):
        earliest.append(int(np.searchsorted(ended, begun[earliest[-1]] - most)))
    copied = begun - ended
    bounds = [0]
    for left in range(num_parts - 1, 0, -1):  # parts that come after this one, none of them empty
        start = bounds[-1]
        first = max(earliest[left], start + 1)
        last = min(furthest(start, most), count - left)
        places = copied[first : last + 1]
        cheapest = first + np.flatnonzero(places == places.min())
        even = ended[start] + (begun[count] - ended[start]) // (left + 1)
        nearest = np.abs(begun[cheapest] - even).argmin()
        bounds.append(int(cheapest[nearest]))
    return [*bounds, count]
