"""Where the paths of prompts are split: on what was read before, so that later prompts find it.

A prefix tree splits prompts where they part among themselves. What is read later, in the next
window or the next call, would part a token earlier or later and find no node of its own. So its
paths fall on the places where those of earlier prompts were split, and part as they like below.

Splits decide the very bits of the numbers. They depend on the prompts that were read, in their
order, and on nothing else: not on what has finished, nor on what the memory still holds. So a job
that reads the same prompts again, with some of its samples on record, splits them the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sharegen.engine.cache.prefix_tree import LOOKAHEAD, PrefixTree, Prompt, Tokens, common_prefix
from sharegen.engine.core.request import Request

_MOST_TOKENS = 1 << 24
"""That are remembered, in 64 MiB; beyond that everything is forgotten."""


@dataclass(eq=False)
class _Place:
    """Where a shared node ended. piece: the node's tokens; end: the position after the last one.

    below: by the first block of what follows, the shared nodes there, and alone: what followed last
    in a prompt that shared it with no other.
    """

    piece: Tokens
    end: int
    above: _Place | None
    below: dict[bytes, list[_Place]] = field(default_factory=dict)
    alone: dict[bytes, Tokens] = field(default_factory=dict)


class Paths:
    """The splits of all prompts that were read. block_size: see PrefixTree."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._forget()

    def _forget(self) -> None:
        self._root = _Place(np.empty(0, np.int32), 0, None)
        self._alone: OrderedDict[tuple[int, bytes], _Place] = OrderedDict()  # the oldest first
        self._tokens = 0

    def with_splits(self, requests: Sequence[Request]) -> list[Request]:
        """Requests that were read together, each with the splits of its path."""
        splits = self.splits([request.tokens for request in requests])
        return [
            replace(request, splits=ends, alone=request.readers)
            for request, ends in zip(requests, splits, strict=True)
        ]

    def splits(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Where the nodes of each prompt's path end, its own length last."""
        arrays = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
        leaves = PrefixTree(self.block_size).insert(arrays)
        own = [leaf.splits() for leaf in leaves]
        places = self._worth([self._deepest(tokens) for tokens in arrays], own)
        found = [
            self._below(tokens, ends, place, is_alone=not leaf.children)
            for tokens, ends, place, leaf in zip(arrays, own, places, leaves, strict=True)
        ]
        if self._tokens > _MOST_TOKENS:
            self._forget()
        for tokens, ends in zip(arrays, found, strict=True):
            self._note(tokens, ends)
        return found

    def _first(self, tokens: Tokens, start: int) -> bytes:
        return tokens[start : start + self.block_size].tobytes()

    def _deepest(self, tokens: Tokens) -> _Place:
        """The last place on the prompt's way, which goes on beyond."""
        place = self._root
        while True:
            for child in place.below.get(self._first(tokens, place.end), ()):
                if child.end < len(tokens) and np.array_equal(
                    child.piece, tokens[place.end : child.end]
                ):
                    place = child
                    break
            else:
                return place

    def _worth(self, places: list[_Place], own: list[list[int]]) -> list[_Place]:
        """The places, without those that cost more than they save.

        Prompts that share less than a block beyond a place would each have that to themselves.
        """
        beyond = [
            next((end for end in ends[:-1] if end > place.end), place.end)
            for place, ends in zip(places, own, strict=True)
        ]
        shared: Counter[tuple[_Place, int]] = Counter(zip(places, beyond, strict=True))
        good = []
        for place, end in zip(places, beyond, strict=True):
            short = end - place.end
            if short < self.block_size and short * shared[place, end] > len(place.piece):
                assert place.above is not None
                place = place.above
            good.append(place)
        return good

    def _below(self, tokens: Tokens, own: list[int], place: _Place, is_alone: bool) -> list[int]:
        """Return the splits up to a place, and a prompt's own ones from there.

        is_alone: whether none that was read with it goes on from it. Then it parts where one
        parted from it that came before and was alone, too.
        """
        size, length = self.block_size, len(tokens)
        ends = [end for end in own if end == length or end >= place.end + size]
        twin = place.alone.get(self._first(tokens, place.end))
        if ends == [length] and is_alone and twin is not None:
            common = place.end + common_prefix(twin, tokens[place.end :])
            if place.end + size <= common < length:
                ends = [common, length]
        above = []
        step: _Place | None = place
        while step is not None and step is not self._root:
            above.append(step.end)
            step = step.above
        return above[::-1] + ends

    def _note(self, tokens: Tokens, ends: list[int]) -> None:
        place = self._root
        for end in ends[:-1]:
            piece = tokens[place.end : end]
            siblings = place.below.setdefault(self._first(tokens, place.end), [])
            for child in siblings:
                if child.end == end and np.array_equal(child.piece, piece):
                    break
            else:
                child = _Place(piece.copy(), end, place)
                siblings.append(child)
                self._tokens += len(piece)
            place = child
        first = self._first(tokens, place.end)
        last = tokens[place.end :]
        if len(last) > self.block_size:
            self._forget_alone((id(place), first))
            place.alone[first] = last.copy()
            self._tokens += len(last)
            self._alone[id(place), first] = place
            if len(self._alone) > LOOKAHEAD:
                self._forget_alone(next(iter(self._alone)))

    def _forget_alone(self, key: tuple[int, bytes]) -> None:
        place = self._alone.pop(key, None)
        if place is not None:
            self._tokens -= len(place.alone.pop(key[1]))
