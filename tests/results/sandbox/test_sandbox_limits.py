"""Limits against every way to spend: whatever a program does, it has no more than it is given.

Every program here runs inside the sandbox, and is bounded by itself too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

import sharegen
from sharegen.common.cores import available_cores
from sharegen.results.sandbox import cgroup
from sharegen.results.sandbox.host import KINDS, Sandbox, fault_of
from sharegen.results.sandbox.limits import MIB, Limits
from sharegen.results.sandbox.system import Isolation
from tests.results.sandboxes import run

BRIEF = Limits(cpu_seconds=0.3, wall_seconds=8, memory=256 * MIB, disk=8 * MIB, output=MIB)
SMALL = Limits(cpu_seconds=20, wall_seconds=20, memory=192 * MIB, disk=48 * MIB, output=MIB)

BURN = (
    "import os, signal, sys, time\n"
    "def burn(seconds):\n"
    "    start = time.process_time()\n"
    "    while time.process_time() - start < seconds: pass\n"
)
SPENDERS = {
    "unowned": (
        "if os.fork() == 0:\n"
        "    if os.fork() == 0: burn(2)\n"
        "    os._exit(0)\n"
        "os.wait()\ntime.sleep(6)"
    ),
    "children that nobody waits for": (
        "for _ in range(8):\n    if os.fork() == 0: burn(0.3); os._exit(0)\ntime.sleep(6)"
    ),
    "children whose end is ignored": (
        "try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0: burn(0.3); os._exit(0)\n"
        "    time.sleep(0.5)"
    ),
    "children that are waited for": (
        "for _ in range(200):\n    if os.fork() == 0: burn(0.01); os._exit(0)\n    os.wait()"
    ),
    "a chain of forks": (
        "if os.fork() == 0:\n"
        "    for _ in range(200):\n        burn(0.01)\n        if os.fork(): os._exit(0)\n"
        "time.sleep(6)"
    ),
    "threads": (
        "import threading\nfor _ in range(4): threading.Thread(target=burn, args=[2]).start()"
    ),
}


def _seconds_of_ended_programs(sandbox: Sandbox) -> float:
    """CPU seconds of all that the warmed parent has reaped."""
    times = psutil.Process(sandbox._process.pid).children(recursive=True)[-1].cpu_times()
    return times.children_user + times.children_system


@pytest.mark.parametrize("source", SPENDERS.values(), ids=list(SPENDERS))
@pytest.mark.turn(2)
def test_seconds_are_counted_whoever_spends_them(sandbox: Sandbox, source: str) -> None:
    before = _seconds_of_ended_programs(sandbox)
    assert run(sandbox, BURN + source, limits=BRIEF).status == "timeout"
    spent = _seconds_of_ended_programs(sandbox) - before
    assert 0.25 < spent < 0.8


@pytest.mark.slow
def test_seconds_end_where_they_should_on_a_busy_machine(sandbox: Sandbox) -> None:
    limits = Limits(cpu_seconds=1, wall_seconds=60, memory=256 * MIB)
    crowd = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(4 * available_cores())
    ]
    try:
        before = _seconds_of_ended_programs(sandbox)
        assert run(sandbox, "while True: pass", limits=limits).status == "timeout"
        assert _seconds_of_ended_programs(sandbox) - before < 1.3
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def test_the_system_itself_ends_a_process_at_its_limit(sandbox: Sandbox) -> None:
    """Whoever comes late to look."""
    source = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    assert run(sandbox, source, limits=Limits(cpu_seconds=3)).output == b"3\n"


def test_seconds_of_one_run_are_not_the_next_ones(sandbox: Sandbox) -> None:
    with sandbox.program(f"{BURN}burn(0.2)\nprint(1)", limits=BRIEF) as program:
        assert [program.run_script("").output for _ in range(3)] == [b"1\n"] * 3


# Memory, counted by a cgroup and added up without one


@pytest.fixture(scope="module", params=["cgroup", "sum"])
def counting(request: pytest.FixtureRequest) -> Iterator[str]:
    """With and without a memory cgroup, as on a system where none can be had."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "sum":
            patch.setattr(cgroup, "create", lambda: None)
        yield request.param


@pytest.fixture(scope="module", params=KINDS)
def limited(request: pytest.FixtureRequest, counting: str) -> Iterator[Sandbox]:
    if fault_of(request.param) is not None:
        pytest.skip(str(fault_of(request.param)))
    with Sandbox(request.param, SMALL) as sandbox:
        if counting == "cgroup" and not sandbox.is_counted:
            pytest.skip("no memory cgroup can be had here")
        yield sandbox


MAPPED = (
    "import ctypes, os, time\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.mmap.restype = ctypes.c_void_p\n"
    "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]\n"
    "libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]\n"
    "libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n"
    "def mapped(size, flags, where=None, descriptor=-1):\n"
    "    address = libc.mmap(where, size, 3, flags, descriptor, 0)\n"
    "    if address == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno(), 'mmap')\n"
    "    return address\n"
)
IN_CHILDREN = "for _ in range(24):\n    if os.fork() == 0:\n{body}\n        time.sleep(9)\n"
FILL = (
    "        ends = []\n"
    "        try:\n"
    "            while True:\n"
    "                ends += {pair}\n"
    "                os.set_blocking({full}, False)\n"
    "                try:\n"
    "                    while True: os.write({full}, bytes(1 << 16))\n"
    "                except BlockingIOError: pass\n"
    "        except OSError: pass"
)
HOARDERS = {
    "shared memory, unmapped but for a page": (
        f"{MAPPED}for _ in range(12):\n"
        "    address = mapped(64 << 20, 0x21)\n"
        "    ctypes.memset(address, 1, 64 << 20)\n"
        "    libc.munmap(address + 4096, (64 << 20) - 4096)\n"
    ),
    "shared memory, not needed any more": (
        f"{MAPPED}for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(3):\n"
        "            address = mapped(64 << 20, 0x21)\n"
        "            ctypes.memset(address, 1, 64 << 20)\n"
        "            libc.madvise(address, 64 << 20, 4)\n"
        "        time.sleep(9)\n"
        "time.sleep(1)\n"
        "if os.waitpid(-1, os.WNOHANG)[0]: os._exit(1)\n"
    ),
    "a device that gives memory": (
        f"{MAPPED}zero = os.open('/dev/zero', os.O_RDWR)\nfor _ in range(12):\n"
        "    address = mapped(64 << 20, 1, None, zero)\n"
        "    ctypes.memset(address, 1, 64 << 20)\n"
        "    libc.munmap(address + 4096, (64 << 20) - 4096)\n"
    ),
    "files in memory": (
        "import os, time\n"
        "for folder in ('/tmp', '/home'): open(folder + '/x', 'wb').write(bytes(47 << 20))\n"
        "kept = bytearray(b'x') * (120 << 20)\n"
    ),
    "pipes": "import os, time\n"
    + IN_CHILDREN.format(body=FILL.format(pair="os.pipe()", full="ends[-1]"))
    + "kept = bytearray(b'x') * (150 << 20)\n",
    "sockets": "import os, socket, time\n"
    + IN_CHILDREN.format(
        body=FILL.format(pair="[s.detach() for s in socket.socketpair()]", full="ends[-1]")
    ),
    "page tables": MAPPED
    + IN_CHILDREN.format(
        body=(
            "        for n in range(5000):\n"
            "            ctypes.string_at(mapped(4096, 0x22, (1 << 44) + (n << 21)), 1)"
        )
    ),
    "small parts in many processes": "import os, time\n"
    + IN_CHILDREN.format(body="        kept = bytearray(b'x') * (16 << 20)"),
}


@pytest.mark.parametrize("source", HOARDERS.values(), ids=list(HOARDERS))
@pytest.mark.turn(6)
def test_memory_is_limited_wherever_it_lies(limited: Sandbox, source: str) -> None:
    """Either it is denied, or there is too much of it."""
    answer = run(limited, f"{source}time.sleep(4)\nprint('held')")
    assert answer.status in ("memory", "error") and answer.output == b""


@pytest.mark.turn(4)
def test_memory_that_was_given_back_is_not_held(limited: Sandbox) -> None:
    source = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    kept = bytearray(b'x') * (100 << 20)\n"
        "    del kept\n"
        "    if os.fork() == 0: os._exit(len(bytearray(b'x') * (100 << 20)) & 1)\n"
        "    os.wait()\n"
        "    with open('x', 'wb') as file: file.write(bytes(40 << 20))\n"
        "    os.unlink('x')\n"
        "print(1)"
    )
    for _ in range(2):
        assert run(limited, source).output == b"1\n"


@pytest.mark.turn(4)
def test_processes_that_work_together_do_so(limited: Sandbox) -> None:
    source = (
        "import asyncio, subprocess\n"
        "from multiprocessing import Array, Pool, Process, Queue, Value\n"
        "from multiprocessing.shared_memory import SharedMemory\n"
        "def add(total, queue):\n"
        "    with total.get_lock(): total.value += 2\n"
        "    queue.put(3)\n"
        "async def four(): return 4\n"
        "total, queue, items = Value('i', 0), Queue(), Array('i', [1, 2])\n"
        "process = Process(target=add, args=(total, queue))\n"
        "process.start()\nprint(queue.get())\nprocess.join()\n"
        "print(total.value, sum(items), asyncio.run(four()))\n"
        "with Pool(2) as pool: print(sum(pool.map(abs, [-1, -2])))\n"
        "shared = SharedMemory(create=True, size=10)\nshared.close()\nshared.unlink()\n"
        "print(subprocess.run('echo 5 | cat', shell=True, capture_output=True, text=True).stdout)"
    )
    answer = run(limited, source, limits=Limits())
    assert (answer.status, answer.output.split()) == ("ok", b"3 2 3 4 3 5".split())


# An ordinary user

_USER = 65533
_AS_USER = """
import json, sys
from sharegen.results.sandbox.host import Sandbox, fault_of
from sharegen.results.sandbox.limits import Limits

found = {}
kind, programs = json.load(sys.stdin)
if fault_of(kind) is None:
    with Sandbox(kind) as sandbox:
        for name, source, limits in programs:
            with sandbox.program(source, limits=Limits(**limits)) as program:
                answer = program.run_script("")
            found[name] = [answer.status, answer.output.decode()]
print(json.dumps(found))
"""


def _python_for_all() -> str:
    """A Python that an ordinary user may start, with the package in his reach; else skips."""
    if os.getuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if _as_user(python, "import sharegen.results.sandbox.host").returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("an ordinary user can start no Python here, or not read this package")


def _as_user(python: str, code: str, given: str = "") -> subprocess.CompletedProcess[str]:
    package = str(Path(sharegen.__file__).parents[1])
    return subprocess.run(
        [python, "-S", "-B", "-c", code],
        user=_USER,
        group=_USER,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", "PYTHONPATH": package},
        input=given,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("kind", ["namespaces", "bubblewrap"])
@pytest.mark.slow
@pytest.mark.turn(2)
def test_limits_hold_for_an_ordinary_user(kind: Isolation) -> None:
    python = _python_for_all()
    spenders = [(name, BURN + source, asdict(BRIEF)) for name, source in SPENDERS.items()]
    end = "time.sleep(4)\nprint('held')"
    hoarders = [(name, source + end, asdict(SMALL)) for name, source in HOARDERS.items()]
    ended = _as_user(python, _AS_USER, json.dumps([kind, [*spenders, *hoarders]]))
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    if not found:
        pytest.skip(f"an ordinary user can have no {kind} here")
    for name, (status, output) in found.items():
        assert output == "" and status in ("timeout", "memory", "error"), name
        assert status == "timeout" or name in HOARDERS, name
