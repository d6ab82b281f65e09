"""What the driver needs of the place where its workers run: processes, a cluster, clocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from sharegen.engine.parallel.messages import Setting


class Worker(Protocol):
    """One engine at the other end of a line; it may be gone at any moment."""

    @property
    def pid(self) -> int: ...

    def __hash__(self) -> int: ...

    def send(self, message: object) -> None:
        """Send it a message; raises ConnectionError where it is gone."""

    def why(self) -> str:
        """Say how a worker that no longer answers has ended."""


W = TypeVar("W", bound=Worker)


class Workplace(Protocol[W]):
    """Starts workers, hears them and ends them; only the driver's thread speaks to it."""

    def start(self, setting: Setting) -> W:
        """One more worker; whether it stands is told by its first message."""

    def listen(self) -> Iterable[tuple[W, object]]:
        """Wait a little for what workers say: each with its message, None of one that is gone."""

    def end(self, worker: W) -> None:
        """End a worker at once; what it has not said is drawn again."""

    def close(self) -> None:
        """All workers are ended, and none is started again; closing twice does nothing."""
