"""The numbers of rows that batches are run with."""

from __future__ import annotations

import pytest

from sharegen.engine.core.batch import FIXED_CHUNK
from sharegen.engine.execute.padding import (
    all_sizes,
    graph_rows,
    padded_rows,
    steady_chunk,
    steady_rows,
)


@pytest.mark.parametrize("padded", [graph_rows, padded_rows, steady_rows])
@pytest.mark.parametrize("most", [1, 7, 64, 65, 1000, 8192])
def test_all_sizes_are_all_that_there_are(padded: object, most: int) -> None:
    sizes = all_sizes(padded, most)  # type: ignore[arg-type]
    assert sizes == tuple(sorted({padded(count) for count in range(1, most + 1)}))  # type: ignore[operator]


def test_where_bits_are_not_to_depend_on_rows_there_are_never_fewer_than_16() -> None:
    assert [steady_rows(count) for count in (1, 8, 9, 16, 17, 65)] == [16, 16, 16, 16, 32, 128]
    assert all(steady_rows(count) == graph_rows(count) for count in range(9, 2000))


@pytest.mark.parametrize("asked", [1, 1000, 1024, 2000, 8192])
def test_a_prefill_batch_has_room_for_its_padding(asked: int) -> None:
    most = steady_chunk(asked)
    assert most >= max(asked, FIXED_CHUNK)
    assert all(steady_rows(count) <= most for count in range(1, most + 1))
