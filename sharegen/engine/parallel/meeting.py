"""Where the ranks of one engine find each other: a file that leaves nothing behind.

torch's ranks meet in a file, which must be there as long as any of them. On Linux it has no name:
whatever ends the processes, it goes with rank 0. Elsewhere it lies in a folder of its own, which a
rank 0 that is killed leaves.
"""

from __future__ import annotations

import os
import sys
import tempfile


class Meeting:
    """Close it when all ranks have left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if sys.platform == "linux":
            self._descriptor = os.memfd_create("sharegen-ranks")
            path = f"/proc/{os.getpid()}/fd/{self._descriptor}"
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="sharegen-")
            path = f"{self._folder.name}/ranks"
        self.address = f"file://{path}"

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._folder is not None:
            self._folder.cleanup()
