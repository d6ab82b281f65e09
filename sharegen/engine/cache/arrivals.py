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

from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node, PrefixTree, Tokens, common_prefix
from sharegen.engine.core.request import Request

MOST_LEVELS = 32
"""Nodes on the way to a prompt's own, at most: every level costs every step a little, and prompts
that part at each block would make a path as deep as they are long."""


def with_splits(cache: PrefixCache[Any], requests: Sequence[Request]) -> list[Request]:
    """Requests that have come together, each with the splits of its path.

    Cuts the standing nodes of which they share the beginning. A model that keeps states has them at
    the end of nodes alone: it shares whole nodes only.
    """
    arrays = [request.tokens for request in requests]
    leaves = PrefixTree(cache.pool.block_size).insert(arrays)
    if not cache.states.are_kept:
        for tokens in arrays:
            _cut(cache, tokens)
    found = []
    for request, leaf in zip(requests, leaves, strict=True):
        above = [node.end for node in _standing(cache, request.tokens)]
        place = above[-1] if above else 0
        least = place + cache.pool.block_size
        own = [end for end in leaf.splits() if end >= least or end == leaf.end]
        found.append(replace(request, splits=[*above, *own]))
    return found


def _standing(cache: PrefixCache[Any], tokens: Tokens) -> list[Node]:
    """The nodes from the root down that a prompt has whole, and goes on beyond.

    What is shorter than a block is the end of a prompt, and no node that others go on from.
    """
    path: list[Node] = []
    while True:
        start = path[-1].end if path else 0
        for child in cache.tree.children_of(path[-1] if path else None, int(tokens[start])):
            end = start + child.length
            if child.length < cache.pool.block_size or end >= len(tokens):
                continue
            if common_prefix(child.tokens, tokens[start:end]) == child.length:
                path.append(child)
                break
        else:
            return path


def _cut(cache: PrefixCache[Any], tokens: Tokens) -> None:
    """Cut the node that a prompt shares the beginning of, where it does and that pays."""
    path = _standing(cache, tokens)
    parent = path[-1] if path else None
    rest = tokens[parent.end if parent else 0 :]
    block, best, most = cache.pool.block_size, None, 0
    for child in cache.tree.children_of(parent, int(rest[0])):
        # The logits of its last token are gone, so that one is the prompt's own; and what others
        # go on from stays a node of a block at least.
        shared = min(common_prefix(child.tokens, rest), len(rest) - 1)
        shared = min(shared, child.length - (block if child.children else 1)) // block * block
        if shared > most and cache.may_split(child):
            best, most = child, shared
    if best is not None and len(path) + _height(best) < MOST_LEVELS:
        cache.split(best, most)


def _height(node: Node) -> int:
    """Levels from a node down to the deepest below it, both included."""
    levels, below = 0, [node]
    while below:
        levels += 1
        below = [child for each in below for child in each.children]
    return levels
