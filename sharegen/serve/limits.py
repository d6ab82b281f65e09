"""What a server takes from its clients, at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a server; each is a flag, and passing it is a 4xx that names it.

    body, headers: bytes of one request. requests: that wait or run, at most. choices: of one
    request, prompts times n. output_tokens: of a choice; None for what the context has room for.
    connections: that are open at once. client_seconds: that a client may take to send a request,
    or to take the next piece of its answer. grace: seconds that requests have to finish when the
    server is told to end.

    file: bytes of a file that is uploaded. storage: of all files, from which no more is taken.
    batch_requests: lines of a batch. batches: that are not finished, at most.
    """

    body: int = 16 << 20
    headers: int = 64 << 10
    requests: int = 8192
    choices: int = 1024
    output_tokens: int | None = None
    connections: int = 8192
    client_seconds: float = 60.0
    grace: float = 30.0
    file: int = 200 << 20
    storage: int = 16 << 30
    batch_requests: int = 50_000
    batches: int = 64

    @property
    def bodies(self) -> int:
        """Bytes of all bodies that are being received, or wait to be read."""
        return 32 * self.body
