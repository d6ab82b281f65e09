"""Collections during a job."""

from __future__ import annotations

import gc

import pytest

from sharegen.engine.pauses import short_collections


def test_what_was_there_is_frozen_for_as_long_as_the_job_runs() -> None:
    assert gc.get_freeze_count() == 0
    with pytest.raises(KeyError), short_collections():
        assert gc.get_freeze_count() > 1000
        with short_collections():
            pass
        assert gc.get_freeze_count() > 1000
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_what_others_froze_stays_so() -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with short_collections():
            pass
        assert gc.get_freeze_count() >= before - 1000  # frozen things may be freed one by one
    finally:
        gc.unfreeze()
