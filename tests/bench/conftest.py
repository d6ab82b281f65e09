from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def between_engines(brief_collections: None) -> None:
    """Between two engines, benchmarks collect what is left of the first."""
