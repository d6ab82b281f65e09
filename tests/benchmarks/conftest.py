"""As for `sharegen bench`."""

from tests.bench.conftest import brief_collections  # noqa: F401
