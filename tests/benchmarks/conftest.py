"""As for `sharegen bench`."""

from tests.bench.conftest import between_engines  # noqa: F401
