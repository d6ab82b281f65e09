"""What the tests of the sandbox share: limits, and ways to run a program in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from sharegen.results.sandbox.host import Answer, Sandbox
from sharegen.results.sandbox.limits import MIB, Limits

LIMITS = Limits(cpu_seconds=5, wall_seconds=10, memory=256 * MIB, disk=8 * MIB, output=MIB)
HASTY = Limits(cpu_seconds=1, wall_seconds=1.5, memory=256 * MIB, disk=8 * MIB, output=MIB)


def namespaces_work() -> bool:
    """Whether this system lets us have namespaces, found out without our own code."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    flags = "-mpf" if os.getuid() == 0 else "-Urmpf"
    return subprocess.run(["unshare", flags, "true"], capture_output=True).returncode == 0


def run(sandbox: Sandbox, source: str, given: str = "", limits: Limits | None = None) -> Answer:
    with sandbox.program(source, limits=limits) as program:
        return program.run_script(given)


def attempt(sandbox: Sandbox, source: str) -> str:
    """What a program prints that tries something: 'denied' where an error stopped it."""
    body = "\n".join("    " + line for line in source.strip().splitlines())
    wrapped = (
        "import ctypes, os, socket, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(name, *args):\n"
        "    if getattr(libc, name)(*args) < 0:\n"
        "        raise OSError(ctypes.get_errno(), name)\n"
        f"try:\n{body}\n"
        "except (OSError, ValueError, AttributeError):\n"
        "    print('denied')\n"
        "else:\n"
        "    print('done')\n"
    )
    answer = run(sandbox, wrapped)
    assert answer.status == "ok"
    return answer.output.decode().strip()
