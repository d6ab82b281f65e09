"""A layout whose nodes are read by each row: the same nodes of every row, in the same blocks."""

from __future__ import annotations

import numpy as np

from sharegen.kernels.layout import SharedLayout


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def paths(layout: SharedLayout) -> dict[int, list[tuple]]:
    """Of each row what it reads, from the root down."""
    found: dict[int, list[tuple]] = {int(row): [] for row in layout.order}
    for i in range(layout.num_nodes):
        blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]]
        node = (layout.position[i], layout.level[i], layout.length[i], *blocks,
                layout.contiguous[i], layout.fp8[i])  # fmt: skip
        for row in layout.order[layout.row_start[i] : layout.row_end[i]]:
            found[int(row)].append(node)
    return found


def test_every_row_reads_what_it_read() -> None:
    """Roots of 3 rows and of 1; under the first a node of 2 rows, and one of 1 below."""
    layout = SharedLayout(
        order=ints(2, 0, 3, 1),
        length=ints(20, 5, 3, 17),
        position=ints(0, 20, 25, 0),
        level=ints(0, 1, 2, 0),
        row_start=ints(0, 1, 2, 3),
        row_end=ints(3, 3, 3, 4),
        block_start=ints(0, 2, 3, 4, 6),
        blocks=ints(7, 8, 3, 1, 9, 4),
        contiguous=np.array([True, True, True, False]),
        fp8=np.array([False, False, True, False]),
    )
    apart = layout.row_by_row()
    assert paths(apart) == paths(layout)
    assert (apart.row_end - apart.row_start == 1).all()
    assert (np.diff(apart.row_start) >= 0).all()
    assert apart.shared_levels() == () != layout.shared_levels()
    nothing = SharedLayout(
        ints(0), *[ints()] * 5, ints(0), ints(), np.zeros(0, bool), np.zeros(0, bool)
    )
    assert nothing.row_by_row().num_nodes == 0
