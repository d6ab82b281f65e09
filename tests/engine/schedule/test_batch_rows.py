"""The tables of the rows: how wide they are."""

from __future__ import annotations

import pytest

from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.schedule.batch_rows import BatchRows


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
