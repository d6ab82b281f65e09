"""What one program may use."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program (a test, or a session of calls).

    cpu_seconds: of all its threads; wall_seconds: from its start to its last answer.
    memory: bytes, of all its processes together (and the most address space of each, with some
        room for the interpreter).
    processes: processes and threads at a time.
    disk: bytes in its home and in its temporary folder, each, and of one file.
    output: bytes that it may write, or that one answer may have.
    """

    cpu_seconds: float = 4.0
    wall_seconds: float = 10.0
    memory: int = 1024 * MIB
    processes: int = 32
    disk: int = 64 * MIB
    output: int = 16 * MIB
