"""Collections during a job."""

from __future__ import annotations

import gc

import pytest

from sharegen.engine.pauses import short_collections


def test_what_was_there_is_left_out_for_as_long_as_the_job_runs() -> None:
    before = len(gc.get_objects())
    with pytest.raises(KeyError), short_collections():
        assert len(gc.get_objects()) < before / 10
        raise KeyError
    assert len(gc.get_objects()) > before / 2


def test_what_a_job_leaves_in_cycles_is_collected() -> None:
    with short_collections():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0
