"""The prompts in the cache: who holds what, and what is given up when, and counted how."""

from __future__ import annotations

import pytest

from sharegen.engine.cache.block_pool import BlockPool, BlocksNeeded
from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockPool(20, 4))


def prefill(cache: PrefixCache, *prompts: list[int]) -> list[Node]:
    """Every prompt's path held and computed."""
    params = SamplingParams()
    leaves = cache.insert([Request(i, p, params, range(1)) for i, p in enumerate(prompts)])
    for leaf in leaves:
        cache.hold(leaf)
        for node in leaf.path():
            cache.place(node)
            cache.note_computed(node, node.length)
    return leaves


def ended(cache: PrefixCache, leaf: Node, blocks: int) -> Sequence:
    """A kept sequence with so many blocks, which alone still holds its prompt."""
    request = Request(0, list(range(leaf.end)), SamplingParams(), range(1), keep=True)
    sequence = Sequence(SequenceGroup(request, leaf, 100), 0, 1, 0.0)
    sequence.blocks = [block for _ in range(blocks) if (block := cache.pool.allocate()) is not None]
    cache.keep(sequence)
    cache.release(leaf)
    return sequence


def test_what_is_kept_goes_oldest_first_and_only_as_far_as_need_be(cache: PrefixCache) -> None:
    first, second = prefill(cache, [1] * 8, [2] * 8)
    old, new = ended(cache, first, 3), ended(cache, second, 3)
    assert cache.pool.num_free == 20 - 2 * 2 - 2 * 3
    assert cache.spare(BlocksNeeded(10, 0)) and list(cache.kept) == [old, new]
    assert cache.spare(BlocksNeeded(11, 0)) and list(cache.kept) == [new]
    assert cache.pool.num_free == 15
    cache.check_integrity([])
    assert cache.spare(BlocksNeeded(20, 0)) and not cache.kept and not cache.tree.root_nodes


def test_nothing_is_given_up_where_all_of_it_would_not_do(cache: PrefixCache) -> None:
    first, second = prefill(cache, [1] * 8, [2] * 8)
    ended(cache, first, 3)
    assert not cache.spare(BlocksNeeded(19, 0))  # two blocks are the second prompt's
    assert len(cache.kept) == 1
    assert cache.spare(BlocksNeeded(18, 0)) and not cache.kept
    cache.release(second)


def test_a_block_that_a_fork_holds_too_is_not_spare(cache: PrefixCache) -> None:
    [leaf] = prefill(cache, [1] * 8)
    kept = ended(cache, leaf, 3)
    kept.fed = 9
    fork = Request(1, [1] * 8 + [5] * 9, SamplingParams(), range(1))
    cache.hold(cache.fork(fork, kept))
    assert cache.pool.num_free == 15
    assert not cache.spare(BlocksNeeded(17, 0))  # two of the three are the fork's, too
    assert len(cache.kept) == 1
    cache.check_integrity([])


def test_kv_that_is_given_up_is_counted_when_it_is_computed_again(cache: PrefixCache) -> None:
    first, second = prefill(cache, [1] * 8 + [3], [1] * 8 + [4])
    assert (cache.tokens_computed, cache.tokens_recomputed) == (10, 0)
    assert cache.drop(unless=[second])
    assert not cache.is_resident(first) and cache.is_resident(second)
    assert not cache.drop(unless=[second])
    cache.place(first)
    cache.note_computed(first, 1)
    assert (cache.tokens_computed, cache.tokens_recomputed) == (11, 1)
    cache.release(first)
    cache.release(second)
    assert [node.length for node in cache.idle] == [8]  # it stays for others
    cache.forget_idle()
    assert cache.pool.num_used == 0
