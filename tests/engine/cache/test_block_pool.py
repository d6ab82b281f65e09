"""The block pool against a plain model of who owns what, driven by a state machine."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sharegen.engine.cache.block_pool import BlockPool

NUM_BLOCKS = 13


class Pool(RuleBasedStateMachine):
    """Owners hold lists of blocks; the pool must know them all, at any time."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, 4)
        self.held: list[list[int]] = []
        self.peak = 0

    @property
    def free(self) -> set[int]:
        return set(range(NUM_BLOCKS)) - {block for blocks in self.held for block in blocks}

    def hold(self, blocks: list[int]) -> list[int]:
        self.held.append(blocks)
        self.peak = max(self.peak, NUM_BLOCKS - len(self.free))
        return blocks

    @rule(target=owners)
    def allocate(self) -> list[int]:
        free = self.free
        block = self.pool.allocate()
        if not free:
            assert block is None
            return []
        assert block == max(free)
        return self.hold([block])

    @rule(target=owners, count=st.integers(1, 6))
    def allocate_node(self, count: int) -> list[int]:
        free = sorted(self.free)
        found = self.pool.allocate_node(count)
        if len(free) < count:
            assert found is None
            return []
        assert found is not None
        blocks, contiguous = found
        runs = [b for b in free if set(range(b, b + count)) <= set(free)]
        if runs:
            assert contiguous and blocks == list(range(runs[0], runs[0] + count))
        else:
            assert not contiguous and blocks == free[:count]
        return self.hold(blocks)

    @rule(blocks=owners)
    def grow(self, blocks: list[int]) -> None:
        """A sequence asks for its next block."""
        if any(own is blocks for own in self.held) and self.free:
            block = self.pool.allocate()
            assert block is not None
            blocks.append(block)
            self.peak = max(self.peak, NUM_BLOCKS - len(self.free))

    @rule(target=owners, blocks=owners)
    def fork(self, blocks: list[int]) -> list[int]:
        """Somebody else holds the same blocks, too."""
        if not any(own is blocks for own in self.held):
            return []
        for block in blocks:
            self.pool.share(block)
        return self.hold(list(blocks))

    @rule(blocks=consumes(owners))
    def release(self, blocks: list[int]) -> None:
        self.pool.free(blocks)
        self.held = [own for own in self.held if own is not blocks]

    @invariant()
    def the_books_agree(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_used == NUM_BLOCKS - len(self.free)
        assert self.pool.peak_used == self.peak

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.free(blocks)
        self.pool.check_integrity([])
        assert self.pool.num_free == NUM_BLOCKS
        assert self.pool.allocate_node(NUM_BLOCKS) == (list(range(NUM_BLOCKS)), True)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_nodes_come_from_the_low_end_and_sequences_from_the_high_end() -> None:
    pool = BlockPool(10, 4)
    assert pool.allocate_node(3) == ([0, 1, 2], True)
    assert [pool.allocate(), pool.allocate()] == [9, 8]
    assert pool.allocate_node(2) == ([3, 4], True)
    pool.free([0, 1, 2])
    assert pool.allocate_node(4) == ([0, 1, 2, 5], False)  # no run of four is left
    assert pool.allocate_node(2) == ([6, 7], True)
    assert pool.allocate() is None and pool.allocate_node(1) is None


def test_blocks_for_tokens() -> None:
    pool = BlockPool(1, 16)
    assert [pool.blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_a_block_is_free_with_its_last_owner() -> None:
    pool = BlockPool(2, 4)
    block = pool.allocate()
    assert block is not None
    pool.share(block)
    pool.free([block])
    pool.check_integrity([[block]])
    assert pool.num_used == 1
    pool.free([block])
    assert pool.num_used == 0
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([block])
    with pytest.raises(AssertionError, match="in use"):
        pool.share(block)


def assert_broken(pool: BlockPool, owned: list[list[int]], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        pool.check_integrity(owned)


def test_the_check_finds_every_kind_of_damage() -> None:
    def fresh() -> BlockPool:
        pool = BlockPool(6, 4)
        assert pool.allocate_node(2) is not None and pool.allocate() == 5
        pool.check_integrity([[0, 1], [5]])
        return pool

    assert_broken(fresh(), [[0, 1]], "owners differ")  # a block that nobody holds
    assert_broken(fresh(), [[0, 1], [5], [3]], "owners differ")  # one that is free
    assert_broken(fresh(), [[0, 1], [5], [5]], "owners differ")  # one held twice, counted once
    lost = fresh()
    lost.num_free -= 1
    assert_broken(lost, [[0, 1], [5]], "free count")
    lost = fresh()
    lost._heap.remove(-3)
    assert_broken(lost, [[0, 1], [5]], "lost")
    double = fresh()
    double._heap.append(-3)
    assert_broken(double, [[0, 1], [5]], "twice")
