"""No look for garbage while something is imported, and again after that."""

from __future__ import annotations

import gc

import pytest

from sharegen.engine.model.starting.no_collections import no_collections


@pytest.mark.parametrize("was_on", [True, False])
def test_collections_are_as_before_also_after_an_error(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ImportError), no_collections():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
