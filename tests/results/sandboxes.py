"""What the tests of the sandbox share: limits, and ways to run a program in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sharegen.results.sandbox.host import Sandbox, SandboxReply, choose_isolation
from sharegen.results.sandbox.limits import MIB, Limits
from sharegen.results.sandbox.system import Isolation

LIMITS = Limits(cpu_seconds=5, wall_seconds=10, memory=256 * MIB, disk=8 * MIB, output=MIB)
HASTY = Limits(cpu_seconds=1, wall_seconds=1.5, memory=256 * MIB, disk=8 * MIB, output=MIB)
ENDLESS = Limits(cpu_seconds=0.4, wall_seconds=0.6, memory=256 * MIB, disk=8 * MIB, output=MIB)
"""For programs that may never end by themselves: nothing needs to be done in time."""


_UNSHARE = (  # of user, mount and PID namespaces
    "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000 | 0x00020000 | 0x20000000))"
)


def namespaces_work() -> bool:
    """Whether this system lets us have namespaces, found out without our own code."""
    if not sys.platform.startswith("linux"):
        return False
    return subprocess.run([sys.executable, "-S", "-c", _UNSHARE]).returncode == 0


def isolation() -> Isolation:
    """What `score` would take here; where namespaces work, not having any is a failure."""
    if not namespaces_work():
        pytest.skip("no namespaces on this system")
    return choose_isolation()


def run(
    sandbox: Sandbox, source: str, given: str = "", limits: Limits | None = None
) -> SandboxReply:
    with sandbox.program(source, limits=limits) as program:
        return program.run_script(given)


def attempt(sandbox: Sandbox, source: str) -> str:
    """What a program prints that tries something: 'denied' where an error stopped it."""
    body = "\n".join("    " + line for line in source.strip().splitlines())
    wrapped = (
        "import ctypes, fcntl, os, signal, socket, sys\n"
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


def skip_uncounted(sandbox: Sandbox) -> None:
    if not sandbox.is_counted:
        pytest.skip("no memory cgroup can be had here: programs cannot share anonymous memory")
