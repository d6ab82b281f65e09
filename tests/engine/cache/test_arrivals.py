"""Nodes that are cut where a new prompt parts from them: every path spells its prompt still."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.engine.cache.arrivals import MOST_LEVELS, with_splits
from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.core.request import Request, SamplingParams

BLOCK = 4


def arrive(cache: PrefixCache, *prompts: list[int], computed: bool = True) -> list[Node]:
    """Prompts that come together: their nodes held and, unless said, computed."""
    params = SamplingParams()
    requests = [Request(i, prompt, params, range(1)) for i, prompt in enumerate(prompts)]
    leaves = cache.insert(with_splits(cache, requests))
    for prompt, leaf in zip(prompts, leaves, strict=True):
        cache.hold(leaf)
        assert np.concatenate([node.tokens for node in leaf.path()]).tolist() == prompt
        for node in leaf.path() if computed else ():
            cache.place(node)
            cache.note_computed(node, node.length)
    cache.check_integrity([])
    return leaves


def new_cache() -> PrefixCache:
    cache = PrefixCache(BlockPool(400, BLOCK))
    cache.keeps_leaves = True
    return cache


def lengths(leaf: Node) -> list[int]:
    return [node.length for node in leaf.path()]


def test_an_equal_prompt_shares_all_but_its_last_tokens() -> None:
    cache, prompt = new_cache(), list(range(10))
    first, second = arrive(cache, prompt) + arrive(cache, prompt)
    assert lengths(first) == lengths(second) == [8, 2]
    assert first is not second and first.parent is second.parent
    assert cache.tokens_computed == 12
    [third] = arrive(cache, list(range(8)))  # whole blocks: the last one is its own
    assert lengths(third) == [4, 4]


def test_what_is_kept_is_cut_and_found() -> None:
    cache = new_cache()
    [first] = arrive(cache, list(range(20)))
    cache.release(first)
    assert list(cache.idle) == [first]
    [second] = arrive(cache, [*range(10), 99, 98])
    assert lengths(second) == [8, 4] and cache.tokens_found == 8
    assert list(cache.idle) == [first] and lengths(first) == [8, 12]
    cache.release(second)
    cache.forget_idle()
    assert cache.pool.num_free == 400 and not cache.tree.root_nodes


def test_what_is_not_computed_yet_is_cut_too() -> None:
    cache = new_cache()
    [first] = arrive(cache, list(range(20)), computed=False)
    for node in first.path():
        cache.place(node)
    cache.note_computed(first, 10)
    [second] = arrive(cache, [*range(13), 99], computed=False)
    upper = second.path()[0]
    assert lengths(second) == [12, 2] and first.parent is upper
    assert (cache.stored[upper].computed, cache.stored[first].computed) == (10, 0)


def test_a_path_has_no_more_levels_than_are_worth_it() -> None:
    cache, prompt = new_cache(), list(range(BLOCK * (MOST_LEVELS + 20)))
    for end in range(len(prompt), BLOCK, -BLOCK):
        [leaf] = arrive(cache, [*prompt[:end], 999], computed=False)
        assert len(leaf.path()) <= MOST_LEVELS + 1
    [leaf] = arrive(cache, [*prompt, 7], computed=False)
    assert len(leaf.path()) <= MOST_LEVELS + 1


@settings(deadline=None, max_examples=40)
@given(
    groups=st.lists(
        st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), min_size=1, max_size=3),
        max_size=8,
    ),
    released=st.lists(st.booleans(), min_size=24, max_size=24),
)
def test_any_arrivals_keep_the_books(groups: list[list[list[int]]], released: list[bool]) -> None:
    cache, held = new_cache(), []
    leaves = iter(released)
    for prompts in groups:
        for leaf in arrive(cache, *prompts):
            if next(leaves):
                cache.release(leaf)
                cache.check_integrity([])
            else:
                held.append(leaf)
    for leaf in held:
        cache.release(leaf)
    cache.forget_idle()
    assert cache.pool.num_free == 400 and not cache.tree.root_nodes
