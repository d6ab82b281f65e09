"""What one program may use."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20

OPEN_FILES = 64
"""Descriptors of one process: each may be one end of a pair of sockets full of data."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program (a test, or a session of calls).

    cpu_seconds: of all its processes, those that ended included; wall_seconds: from its start to
        its last answer.
    memory: bytes, of all its processes together, wherever they lie: in memory of their own or
        shared, files in memory, pipes, sockets, page tables (and the most address space of each,
        with some room for the interpreter).
    processes: processes and threads at a time.
    disk: bytes in its home and in its temporary folder, each, and of one file.
    output: bytes that it may write; an answer of a function may have a quarter of that.

    What is spent is looked at every 20 milliseconds, so it may be more by what one core spends in
    that time. A memory cgroup leaves it no more than four times `output` besides, at any time.
    """

    cpu_seconds: float = 4.0
    wall_seconds: float = 10.0
    memory: int = 1024 * MIB
    processes: int = 32
    disk: int = 64 * MIB
    output: int = 16 * MIB

    @property
    def answer(self) -> int:
        """Bytes of one answer. It is JSON, which takes its reader fifty times the memory."""
        return self.output // 4
