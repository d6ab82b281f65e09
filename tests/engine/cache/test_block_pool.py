"""The block pool against a plain model of who owns what, driven by a state machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from sharegen.engine.cache.block_pool import BlockPool, BlocksNeeded

NUM_FULL_BLOCKS = 13


class Pool(RuleBasedStateMachine):
    """Owners hold lists of blocks of two kinds; the pool must know them all, at any time."""

    owners = Bundle("owners")

    @initialize(blocks_per_full=st.sampled_from([1, 2, 2, 4]))
    def begin(self, blocks_per_full: int) -> None:
        self.blocks_per_full = blocks_per_full
        self.num_blocks = NUM_FULL_BLOCKS * blocks_per_full
        self.pool = BlockPool(self.num_blocks, 4, blocks_per_full)
        self.held: list[list[int]] = []
        self.peak = 0

    @property
    def free(self) -> set[int]:
        return set(range(self.num_blocks)) - {block for blocks in self.held for block in blocks}

    def whole(self, number: int) -> set[int]:
        return set(range(number * self.blocks_per_full, (number + 1) * self.blocks_per_full))

    @property
    def free_full_blocks(self) -> list[int]:
        free = self.free
        return [number for number in range(NUM_FULL_BLOCKS) if self.whole(number) <= free]

    @property
    def singles(self) -> set[int]:
        """Free blocks of full blocks that are broken."""
        return self.free.difference(*map(self.whole, self.free_full_blocks))

    def hold(self, blocks: list[int]) -> list[int]:
        self.held.append(blocks)
        self.peak = max(self.peak, self.num_blocks - len(self.free))
        return blocks

    def one(self) -> int | None:
        """The next block of a sequence, which must be the right one."""
        singles, free = self.singles, self.free
        block = self.pool.allocate()
        expected = max(singles or free, default=None)
        assert block == expected
        return block

    @rule(target=owners)
    def allocate(self) -> list[int]:
        block = self.one()
        return [] if block is None else self.hold([block])

    @rule(target=owners, count=st.integers(1, 6))
    def allocate_node(self, count: int) -> list[int]:
        free, singles = sorted(self.free), sorted(self.singles)
        found = self.pool.allocate_node(count)
        if len(free) < count:
            assert found is None
            return []
        assert found is not None
        blocks, contiguous = found[0].tolist(), found[1]
        runs = [b for b in free if set(range(b, b + count)) <= set(free)]
        if runs:
            assert contiguous and blocks == list(range(runs[0], runs[0] + count))
        else:
            rest = [block for block in free if block not in singles]
            assert not contiguous and blocks == sorted((singles + rest)[:count])
        return self.hold(blocks)

    @rule(target=owners, count=st.integers(1, 4))
    def allocate_full_blocks(self, count: int) -> list[int]:
        free = self.free_full_blocks
        found = self.pool.allocate_full_blocks(count)
        if len(free) < count:
            assert found is None
            return []
        assert found is not None
        blocks, contiguous = found[0].tolist(), found[1]
        runs = [g for g in free if set(range(g, g + count)) <= set(free)]
        full_blocks = list(range(runs[0], runs[0] + count)) if runs else free[:count]
        assert contiguous == bool(runs)
        assert blocks == [
            block for full_block in full_blocks for block in sorted(self.whole(full_block))
        ]
        return self.hold(blocks)

    @rule(blocks=owners)
    def grow(self, blocks: list[int]) -> None:
        """A sequence asks for its next block."""
        if any(own is blocks for own in self.held) and self.free:
            block = self.one()
            assert block is not None
            blocks.append(block)
            self.peak = max(self.peak, self.num_blocks - len(self.free))

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

    @rule(full_blocks=st.integers(0, NUM_FULL_BLOCKS), blocks=st.integers(0, 30), some=st.data())
    def ask(self, full_blocks: int, blocks: int, some: st.DataObject) -> None:
        """Whether there is room, and whether there would be without some of the owners."""
        given_up = [own for own in self.held if some.draw(st.booleans())]
        assert self.pool.has(BlocksNeeded(full_blocks, blocks)) == self.fits(full_blocks, blocks)
        before, self.held = self.held, [o for o in self.held if all(o is not g for g in given_up)]
        would_fit, self.held = self.fits(full_blocks, blocks), before
        assert self.pool.would_have(BlocksNeeded(full_blocks, blocks), given_up) == would_fit

    def fits(self, full_blocks: int, blocks: int) -> bool:
        enough = len(self.free) - full_blocks * self.blocks_per_full >= blocks
        return len(self.free_full_blocks) >= full_blocks and enough

    @invariant()
    def the_books_agree(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_free_full_blocks == len(self.free_full_blocks)
        assert self.pool.num_used == self.num_blocks - len(self.free)
        assert self.pool.peak_used == self.peak

    def teardown(self) -> None:
        for blocks in self.held:
            self.pool.free(blocks)
        self.pool.check_integrity([])
        assert self.pool.num_free == self.num_blocks
        found = self.pool.allocate_full_blocks(NUM_FULL_BLOCKS)
        assert found is not None and found[1]


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def node(found: tuple[np.ndarray, bool] | None) -> tuple[list[int], bool]:
    assert found is not None
    return found[0].tolist(), found[1]


def test_nodes_come_from_the_low_end_and_sequences_from_the_high_end() -> None:
    pool = BlockPool(10, 4)
    assert node(pool.allocate_full_blocks(3)) == ([0, 1, 2], True)
    assert [pool.allocate(), pool.allocate()] == [9, 8]
    assert node(pool.allocate_full_blocks(2)) == ([3, 4], True)
    pool.free([0, 1, 2])
    assert node(pool.allocate_full_blocks(4)) == ([0, 1, 2, 5], False)  # no run of four is left
    assert node(pool.allocate_full_blocks(2)) == ([6, 7], True)
    assert pool.allocate() is None and pool.allocate_full_blocks(1) is None


def test_a_sequence_takes_what_is_left_of_a_broken_pair_first() -> None:
    pool = BlockPool(10, 4, blocks_per_full=2)
    assert node(pool.allocate_full_blocks(2)) == ([0, 1, 2, 3], True)
    assert [pool.allocate() for _ in range(4)] == [9, 8, 7, 6]
    pool.free([9, 6])
    assert pool.num_free == 4 and pool.num_free_full_blocks == 1  # 4 and 5 are the pair
    assert (
        pool.has(BlocksNeeded(1, 2))
        and not pool.has(BlocksNeeded(2, 0))
        and not pool.has(BlocksNeeded(1, 3))
    )
    assert [pool.allocate(), pool.allocate(), pool.allocate()] == [9, 6, 5]
    assert pool.allocate_full_blocks(1) is None  # a free block, of no free pair
    pool.free([5])
    assert node(pool.allocate_full_blocks(1)) == ([4, 5], True)


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
    def fresh(blocks_per_full: int = 1) -> BlockPool:
        pool = BlockPool(6, 4, blocks_per_full)
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
    lost._free_full_blocks.heap.remove(-3)
    assert_broken(lost, [[0, 1], [5]], "lost")
    double = fresh()
    double._free_full_blocks.heap.append(-3)
    assert_broken(double, [[0, 1], [5]], "twice")
    lost = fresh(blocks_per_full=2)
    lost._singles.heap.remove(-4)
    assert_broken(lost, [[0, 1], [5]], "lost")
    lost = fresh(blocks_per_full=2)
    lost.num_free_full_blocks += 1
    assert_broken(lost, [[0, 1], [5]], "free full blocks")
    lost = fresh(blocks_per_full=2)
    lost._used[2] += 1
    assert_broken(lost, [[0, 1], [5]], "in use")


@pytest.mark.turn(3)
@pytest.mark.parametrize("count", [1, 3, 1000, 1100, 6000])
def test_the_first_run_is_found_wherever_it_is(count: int) -> None:
    """In a pool of which more is looked at only where the low end has no run."""
    for before in (0, 900, 1020, 1023, 1024, 5000):
        pool = BlockPool(8000 + count, 16)
        taken = [pool.allocate_node(1) for _ in range(before)]
        for one, _ in filter(None, taken[::2]):
            pool.free(one)  # every other one is free: no run there
        node = pool.allocate_node(count)
        assert node is not None
        blocks, is_run = node
        start = 0 if count == 1 else before - before % 2
        assert is_run and blocks.tolist() == list(range(start, start + count))
