from __future__ import annotations

import gc

import pytest
import torch


@pytest.fixture(autouse=True)
def brief_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two engines, benchmarks collect what is left of the first: here, what is young of it.

    Beside all that the tests have imported, a full collection takes half a second.
    """
    if torch.cuda.is_available():  # whose memory is scarce
        return
    collect = gc.collect
    monkeypatch.setattr(gc, "collect", lambda: collect(1))
