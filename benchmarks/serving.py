"""A server in a process of its own, as its clients find it, for what measures servers."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sharegen.errors import SharegenError


@dataclass(frozen=True)
class Spawned:
    """A server that answers at a port of this machine."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def metrics(self) -> dict[str, float]:
        """What it says of itself, by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the process, and of those that it started and that live, until now."""
        ticks = 0
        for pid in _family(self.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def resident(self) -> int:
        """Bytes of memory that it holds."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * 4096


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for path in children for child in path.read_text().split()]
    return [pid, *(each for child in below for each in _family(child))]


@contextmanager
def spawned(model: str, *flags: str) -> Iterator[Spawned]:
    """A server of a model, which ends with the block. Raises SharegenError where none comes up."""
    command = [sys.executable, "-m", "sharegen", "serve", "--model", model, "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise SharegenError("the server did not come up: see above")
        yield Spawned(process.pid, int(url.rpartition(":")[2].partition("/")[0]))
        process.terminate()
        code = process.wait(120)
        if code:
            raise SharegenError(f"the server ended with exit code {code}")
    finally:
        process.kill()
        process.wait()
