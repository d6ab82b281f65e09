"""Prompts that come one by one while others run: each goes on from the KV that stands already.

Within a job the tree splits where the prompts of one lookahead part (`prefix_tree.py`, `paths.py`),
so that the bits of a sample depend on what is asked and on nothing else. Where nobody knows what
comes next, a prompt is split on what stands: a node that it shares only the beginning of is cut in
two, at the end of a block, and the KV of its blocks goes with them. So the second of two equal
prompts computes less than a block, whether the first one waits, runs or has finished, and the tree
grows and is cut while requests come and go (ChunkAttention, 2402.15220, section 3.1).

What a prompt shares then depends on when it comes, and so do the last bits of its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node, PrefixTree, Tokens, common_prefix
from sharegen.engine.core.request import Request

MOST_LEVELS = 32
"""Nodes on the way to a prompt's own, at most: every level costs every step a little, and prompts
that part at each block would make a path as deep as they are long."""


def with_splits(cache: PrefixCache[Any], requests: Sequence[Request]) -> list[Request]:
    """Requests that have come together, each with the splits of its path.

    Cuts the standing nodes of which they share the beginning. Not for a model that keeps states: it
    has them at the end of nodes alone, so that none can be cut.
    """
    arrays = [request.tokens for request in requests]
    leaves = PrefixTree(cache.pool.block_size).insert(arrays)
    standing = _Standing(cache)
    for tokens in arrays:
        standing.cut(tokens)
    found = []
    for request, tokens, leaf in zip(requests, arrays, leaves, strict=True):
        above = [node.end for node in standing.path(tokens)]
        place = above[-1] if above else 0
        least = place + cache.pool.block_size
        own = [end for end in leaf.splits() if end >= least or end == leaf.end]
        split = replace(request, splits=[*above, *own])
        vars(split)["tokens"] = tokens  # which take a while to make
        found.append(split)
    return found


class _Standing:
    """What stands in the tree, looked through for the prompts of one call."""

    def __init__(self, cache: PrefixCache[Any]) -> None:
        self._cache = cache
        self._block = cache.pool.block_size
        self._below: dict[Node | None, dict[int, list[Node]]] = {}  # by their first tokens

    def _begin_with(self, parent: Node | None, token: int) -> Sequence[Node]:
        """The nodes below one, or the roots, that begin with a token and may be shared."""
        below = self._below.get(parent)
        if below is None:
            below = self._below[parent] = {}
            for child in self._cache.tree.shared_below(parent):
                below.setdefault(int(child.tokens[0]), []).append(child)
        return below.get(token, ())

    def path(self, tokens: Tokens) -> list[Node]:
        """The nodes from the root down that a prompt has whole, and goes on beyond.

        What is shorter than a block is the end of a prompt, and no node that others go on from.
        """
        path: list[Node] = []
        while True:
            start = path[-1].end if path else 0
            for child in self._begin_with(path[-1] if path else None, int(tokens[start])):
                end = start + child.length
                if child.length < self._block or end >= len(tokens):
                    continue
                if np.array_equal(child.tokens, tokens[start:end]):
                    path.append(child)
                    break
            else:
                return path

    def cut(self, tokens: Tokens) -> None:
        """Cut the node that a prompt shares the beginning of, where it does and that pays."""
        path = self.path(tokens)
        parent = path[-1] if path else None
        rest = tokens[parent.end if parent else 0 :]
        best, most = None, 0
        for child in self._begin_with(parent, int(rest[0])):
            # The logits of its last token are gone, so that one is the prompt's own; and what
            # others go on from stays a node of a block at least.
            shared = min(common_prefix(child.tokens, rest), len(rest) - 1)
            least = self._block if child.children else 1
            shared = min(shared, child.length - least) // self._block * self._block
            if shared > most and self._cache.may_split(child):
                best, most = child, shared
        if best is not None and len(path) + _height(best) < MOST_LEVELS:
            self._cache.split(best, most)
            self._below.pop(parent)


def _height(node: Node) -> int:
    """Levels from a node down to the deepest below it, both included."""
    levels, below = 0, [node]
    while below:
        levels += 1
        below = [child for each in below for child in each.children]
    return levels
