"""The tables of the rows: how wide they are, and what they say of their sequences."""

from __future__ import annotations

import pytest

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


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
    assert made._by_leaf() == [(leaves[0], [0, 2]), (leaves[1], [1, 3])]
    made.position[:4] += 3  # as three steps do
    assert [sequence.fed for sequence in sequences] == [3] * 4
    made.evict(sequences[0])
    assert made._by_leaf() == [(leaves[1], [1, 3]), (leaves[0], [2])]
    assert sequences[0].fed == 3 and sequences[0].rows is None
    made.admit(sequences[0], [1], (0, 0))
    assert made.position[0] == 20 + 3 and made._by_leaf()[0] == (leaves[0], [0, 2])
