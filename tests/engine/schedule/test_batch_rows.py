"""The tables of the rows: how wide they are, and what they say of their sequences."""

from __future__ import annotations

import numpy as np
import pytest

from sharegen.engine.cache.prefix_tree import Node, PrefixTree
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.padding import graph_rows
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


def by_leaf(made: BatchRows) -> list[tuple[Node, list[int]]]:
    return [(leaf, found.tolist()) for leaf, found in made._by_leaf()]


def rows(least_width: int | None = None) -> BatchRows:
    return BatchRows(4, 16, 0, lambda count: count, StateSlots(), least_width=least_width)


@pytest.mark.parametrize(("least", "widths"), [(None, [1, 3, 9, 9, 40]), (8, [8, 8, 16, 16, 64])])
def test_tables_are_as_wide_as_the_longest_sample_needs_or_widen_by_doubling(
    least: int | None, widths: list[int]
) -> None:
    made = rows(least)
    found = []
    for blocks in (1, 3, 9, 5, 40):
        made.make_wide(blocks)
        found.append(made.block_tables.shape[1])
    assert found == widths
    assert (made.block_tables == 0).all()


def test_rows_under_a_node_are_found_by_the_first_of_them_and_say_what_they_have_fed() -> None:
    made = rows()
    made.make_wide(2)
    tree = PrefixTree(16)
    leaves = tree.insert([[1] * 20, [2] * 30])
    params = SamplingParams(n=2, max_tokens=9)
    groups = [
        SequenceGroup(Request(i, prompt, params, range(2)), leaf, 100)
        for i, (prompt, leaf) in enumerate(zip(([1] * 20, [2] * 30), leaves, strict=True))
    ]
    sequences = [Sequence(groups[i % 2], i // 2, 5, 0.0) for i in range(4)]
    for i, sequence in enumerate(sequences):
        made.admit(sequence, [i + 1], (0, i))
    assert by_leaf(made) == [(leaves[0], [0, 2]), (leaves[1], [1, 3])]
    made.position[:4] += 3  # as three steps do
    assert [sequence.fed for sequence in sequences] == [3] * 4
    made.evict(sequences[0])
    assert by_leaf(made) == [(leaves[1], [1, 3]), (leaves[0], [2])]
    assert sequences[0].fed == 3 and sequences[0].rows is None
    made.admit(sequences[0], [1], (0, 0))
    assert made.position[0] == 20 + 3 and by_leaf(made)[0] == (leaves[0], [0, 2])


def emptying(most: int, patience: int) -> tuple[list[int], float, int]:
    """A batch of which one row in 126 ends with each step, on a GPU.

    Returns the sizes that it is run with, how many steps dead rows take the time of, and how often
    the device waits for rows to move.
    """
    made = BatchRows(most, 16, 0, graph_rows, StateSlots(), patience=patience)
    made.make_wide(1)
    [leaf] = PrefixTree(16).insert([[1] * 20])
    group = SequenceGroup(Request(0, [1] * 20, SamplingParams(), range(most)), leaf, 10**6)
    for sample in range(most):
        made.admit(Sequence(group, sample, 5, 0.0), [1], (0, 0))
    random = np.random.default_rng(0)
    sizes, dead, waits = [], 0.0, 0
    while made.num_running:
        waits += made.wants_compaction
        made.compact()
        size = made._next_size()
        sizes += [size] if size not in sizes else []
        dead += (size - made.padded(made.num_running)) / (size + 256)
        for sequence in [s for s in made.running() if random.random() < 1 / 126]:
            made.evict(sequence)
    return sizes, dead, waits


@pytest.mark.parametrize("most", [256, 1024])
def test_a_batch_that_empties_becomes_smaller_when_dead_rows_have_cost_enough(most: int) -> None:
    sizes, dead, waits = emptying(most, patience=16)
    assert sizes[0] == most and sizes == sorted(sizes, reverse=True)
    assert waits <= len(sizes) <= 6 and sizes[-1] <= 64
    assert dead < 17 * len(sizes)
    sizes, dead, _ = emptying(most, patience=0)
    assert dead == 0 and len(sizes) > 6


def test_a_batch_becomes_larger_at_once_and_of_any_size_for_another_job() -> None:
    made = BatchRows(1024, 16, 0, graph_rows, StateSlots(), patience=16)
    made.make_wide(1)
    [leaf] = PrefixTree(16).insert([[1] * 20])
    group = SequenceGroup(Request(0, [1] * 20, SamplingParams(), range(2000)), leaf, 10**6)
    sequences = [Sequence(group, sample, 5, 0.0) for sample in range(1024)]
    found = []
    for first, last in ((0, 100), (100, 700), (700, 1024)):
        for sequence in sequences[first:last]:
            made.admit(sequence, [1], (0, 0))
        found.append(made._next_size())
    assert found == [128, 768, 1024]
    for sequence in sequences[5:]:
        made.evict(sequence)
    assert not made.wants_compaction and made._next_size() == 1024
    made.forget_size()
    assert made._next_size() == 8
