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
    """A server that answers at a port of this machine, and the engines that it has started."""

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
        return self._count("fd")

    @property
    def threads(self) -> int:
        return self._count("task")

    def _count(self, folder: str) -> int:
        paths = (Path(f"/proc/{pid}/{folder}") for pid in _family(self.pid))
        return sum(len(list(path.iterdir())) for path in paths)

    @property
    def cpu_seconds(self) -> float:
        """Processor time until now."""
        return sum(map(_cpu_seconds, _family(self.pid)))

    @property
    def main_cpu_seconds(self) -> float:
        """That of the main process alone."""
        return _cpu_seconds(self.pid)

    @property
    def http_cpu_seconds(self) -> float:
        """That of the HTTP processes beside it."""
        return sum(_cpu_seconds(pid) for pid in _family(self.pid) if _is_http(pid))

    @property
    def resident(self) -> dict[str, int]:
        """Bytes of memory that its processes hold: the main one, those for HTTP, and all others.

        What processes share counts for each.
        """
        found = {"main": 0, "http": 0, "others": 0}
        for pid in _family(self.pid):
            kind = "main" if pid == self.pid else "http" if _is_http(pid) else "others"
            found[kind] += _resident(pid)
        return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return 4096 * int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def _is_http(pid: int) -> bool:
    return b"sharegen.serve.http_process\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


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
