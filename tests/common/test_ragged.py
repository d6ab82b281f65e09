"""Many lists of numbers as one array, in memory or in a file."""

from __future__ import annotations

import pickle
import tempfile
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.common import ragged
from sharegen.common.ragged import Ragged
from sharegen.errors import DataError

LISTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9), max_size=20)


@settings(max_examples=100, deadline=None)
@given(LISTS, st.sampled_from([0, 40, 1 << 20]))
def test_the_lists_are_as_they_were(lists: list[list[int]], in_memory: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ragged, "IN_MEMORY", in_memory)
        found = Ragged(iter(lists))
    assert len(found) == len(lists)
    assert [list(row) for row in found] == lists
    assert [np.asarray(row, np.int32).tolist() for row in found[1:-1]] == lists[1:-1]
    assert all(list(found[i]) == lists[i] for i in range(-len(lists), len(lists)))
    for beyond in (len(lists), -len(lists) - 1):
        with pytest.raises(IndexError):
            found[beyond]


def test_a_row_is_a_list_of_numbers() -> None:
    row = Ragged([[1, 2], [3, 4, 5]])[1]
    assert row and len(row) == 3 and not Ragged([[]])[0]
    assert row[0] == 3 and type(row[-1]) is int and list(row[1:]) == [4, 5]
    assert pickle.loads(pickle.dumps(row)) == array("i", [3, 4, 5])
    assert np.shares_memory(np.asarray(row, dtype=np.int32), np.asarray(row))


def test_large_ones_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "IN_MEMORY", 1_000)
    monkeypatch.setattr(ragged, "_AT_ONCE", 100)
    rows = np.arange(3_000, dtype=np.int32).reshape(100, 30)
    found = Ragged(rows.tolist())
    base: object = np.asarray(found[7])
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base).__name__ == "mmap"
    assert all(np.array_equal(a, b) for a, b in zip(found, rows, strict=True))


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ragged, "IN_MEMORY", 4)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"none: the token ids cannot be kept there: .* TMPDIR"):
        Ragged([[1, 2, 3]])
