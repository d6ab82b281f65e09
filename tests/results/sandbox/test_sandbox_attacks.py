"""The sandbox, attacked. Every program here runs inside it and nowhere else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from sharegen.results.sandbox.host import Sandbox
from sharegen.results.sandbox.limits import MIB, Limits
from tests.results.sandboxes import ENDLESS, HASTY, LIMITS, attempt, run, skip_uncounted


def test_fork_bomb_is_contained_and_swept_away(sandbox: Sandbox) -> None:
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    before = set(psutil.pids())
    assert run(sandbox, bomb, limits=ENDLESS).status in ("timeout", "memory")
    mine = [p for p in set(psutil.pids()) - before if _descends_from(p, sandbox._process.pid)]
    assert mine == []


def _descends_from(pid: int, ancestor: int) -> bool:
    try:
        return any(parent.pid == ancestor for parent in psutil.Process(pid).parents())
    except psutil.NoSuchProcess:
        return False


def test_processes_are_limited_in_number(sandbox: Sandbox) -> None:
    source = (
        "import os, time\nn = 0\n"
        "try:\n"
        "    while n < 1000:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        n += 1\n"
        "except BlockingIOError: pass\n"
        "print(n)"
    )
    assert int(run(sandbox, source, limits=Limits()).output) == Limits().processes - 1


def test_memory_is_limited_over_all_processes(sandbox: Sandbox) -> None:
    source = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(os.urandom(1 << 20)) * 100\n"
        "        time.sleep(60)\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    assert run(sandbox, source).status == "memory"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("hidden", [False, True])
def test_memory_that_processes_could_share_is_counted(sandbox: Sandbox, hidden: bool) -> None:
    skip_uncounted(sandbox)
    source = (
        "import ctypes, mmap, os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        f"        if {hidden}: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE\n"
        "        memory = mmap.mmap(-1, 100 << 20)\n"
        "        for page in range(0, 100 << 20, 4096): memory[page] = 1\n"
        "        time.sleep(60)\n"
        "time.sleep(60)"
    )
    assert run(sandbox, source).status == "memory"


def test_memory_that_processes_do_share_is_counted_once(sandbox: Sandbox) -> None:
    skip_uncounted(sandbox)
    source = (
        "import mmap, os, time\n"
        "memory = mmap.mmap(-1, 100 << 20)\n"
        "own = bytearray(b'x') * (30 << 20)\n"
        "for page in range(0, 100 << 20, 4096): memory[page] = 1\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        memory[::4096]\n"
        "        time.sleep(60)\n"
        "time.sleep(0.3)\nprint(memory[4096])"
    )
    answer = run(sandbox, source)
    assert (answer.status, answer.output) == ("ok", b"1\n")


@pytest.mark.parametrize(
    "source",
    [
        "while True: pass",
        "import signal\nfor s in range(1, 65):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "import time\ntime.sleep(1000)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import sys\nsys.setrecursionlimit(10**9)\nwhile True:\n"
        "    try:\n        while True: pass\n    except BaseException: pass",
        "x = 9 ** (9 ** 9)",
        "import os\nif os.fork(): os.wait()\nwhile True: pass",
    ],
    ids=["loop", "ignores signals", "sleeps", "stops itself", "catches all", "in C", "child"],
)
@pytest.mark.turn(2)
def test_time_is_limited(sandbox: Sandbox, source: str) -> None:
    started = time.monotonic()
    assert run(sandbox, source, limits=ENDLESS).status == "timeout"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "source",
    [
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os\nif os.fork() == 0:\n    while True: os.write(1, b'x' * 65536)\nos.wait()",
    ],
)
def test_output_is_limited(sandbox: Sandbox, source: str) -> None:
    assert run(sandbox, source).status == "output"


def test_output_to_the_error_stream_goes_nowhere(sandbox: Sandbox) -> None:
    source = "import sys\nfor _ in range(10**4): sys.stderr.write('x' * 10**4)\nprint(1)"
    answer = run(sandbox, source)
    assert (answer.status, answer.output) == ("ok", b"1\n")


@pytest.mark.parametrize("folder", [".", "/home", "/tmp", "/dev/shm"])
def test_own_folders_are_empty_writable_and_small(sandbox: Sandbox, folder: str) -> None:
    source = (
        f"import os\nprint(os.listdir({folder!r}))\n"
        "try:\n"
        "    for n in range(20):\n"
        f"        with open(f'{folder}/{{n}}', 'wb') as file: file.write(bytes(1 << 20))\n"
        "except OSError: print(n)"
    )
    empty, count = run(sandbox, source).output.decode().split()
    assert empty == "[]" and int(count) <= LIMITS.disk // MIB


def test_one_file_is_limited_too(sandbox: Sandbox) -> None:
    assert attempt(sandbox, "os.truncate(open('big', 'w').name, 1 << 30)") == "denied"


def test_many_small_files_are_limited(sandbox: Sandbox) -> None:
    assert attempt(sandbox, "for n in range(100000): open(f'f{n}', 'w').close()") == "denied"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/x",
            "/usr/x",
            "/usr/bin/env",
            "/bin/sh",
            "/etc/x",
            "/sandbox/x",
            "/packages/x",
            "/dev/x",
        ),
        *(
            "/proc/x",
            "/proc/sys/kernel/core_pattern",
            "/proc/1/oom_score_adj",
            "/proc/sysrq-trigger",
        ),
        *("/sandbox/sandbox/server.py", "/root/x", "/lib/x", "/../x", sys.prefix + "/x"),
        *(sys.base_prefix + "/x", sys.base_prefix + "/lib/x", os.path.abspath("x"), "/old/x"),
    ],
)
def test_nothing_outside_can_be_written(sandbox: Sandbox, path: str) -> None:
    assert attempt(sandbox, f"open({path!r}, 'r+').write('x')") == "denied"
    assert attempt(sandbox, f"open({path!r}, 'w').write('x')") == "denied"
    assert attempt(sandbox, f"os.unlink({path!r})") == "denied"
    assert not os.path.lexists(path) or not path.endswith("/x")


def test_the_users_files_and_environment_are_not_there(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the expected value")
    secret.chmod(0o644)
    here = os.path.abspath(__file__)
    for path in (
        secret,
        here,
        "/etc/shadow",
        "/etc/passwd",
        "/var/log",
        os.path.expanduser("~/.bashrc"),
    ):
        assert attempt(sandbox, f"os.stat({str(path)!r})") == "denied", path
    monkeypatch.setenv("SHAREGEN_SECRET", "the expected value")
    with Sandbox(sandbox.isolation) as fresh:
        variables = run(fresh, "import os\nprint(sorted(os.environ))").output.decode()
        assert "SECRET" not in variables and "USER" not in variables
        source = "import glob\nprint(*[open(f, 'rb').read() for f in glob.glob('/proc/*/environ')])"
        assert b"SECRET" not in run(fresh, source).output


def test_folders_of_the_user_that_lead_to_python_are_bare(sandbox: Sandbox) -> None:
    """The interpreter may live in the user's home: then that home shows nothing else."""
    source = (
        "import os\nfor folder, folders, files in os.walk('/'):\n"
        "    folders[:] = [f for f in folders if not os.path.join(folder, f).startswith("
        f"{('/proc', '/usr', '/dev', sys.base_prefix, '/lib', '/etc/alternatives')!r})]\n"
        "    for file in files: print(os.path.join(folder, file))"
    )
    seen = run(sandbox, source).output.decode().split()
    allowed = ("/etc/", "/sandbox/sandbox/", "/packages/", "/bin", "/sbin", "/nix")
    assert seen and not [path for path in seen if not path.startswith(allowed)]


def test_earlier_programs_leave_nothing_to_read(sandbox: Sandbox) -> None:
    run(sandbox, "open('/tmp/note', 'w').write('x')\nopen('/home/note', 'w').write('x')")
    assert (
        run(sandbox, "import os\nprint(os.listdir('/tmp') + os.listdir('/home'))").output == b"[]\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "socket.socket(socket.AF_INET).connect(('127.0.0.1', PORT))",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
        "socket.create_connection(('8.8.8.8', 53), 1)",
        "socket.socket(socket.AF_UNIX).connect('PATH')",
        "socket.socket(socket.AF_UNIX).connect('\\0NAME')",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.getaddrinfo('example.com', 80)",
    ],
)
def test_no_network(sandbox: Sandbox, source: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as unix:
        path = tempfile.mktemp(prefix="sharegen-test-")
        unix.bind(path)
        unix.listen()
        port = server.getsockname()[1]
        source = source.replace("PORT", str(port)).replace("PATH", path).replace("NAME", path)
        assert attempt(sandbox, source) == "denied"
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
        os.unlink(path)


def test_no_network_even_without_the_filter_of_system_calls(sandbox: Sandbox) -> None:
    """The warmed parent itself, which nothing filters, has no interface but an idle loopback."""
    inside = psutil.Process(sandbox._process.pid).children(recursive=True)[-1].pid
    interfaces = Path(f"/proc/{inside}/net/dev").read_text().splitlines()[2:]
    assert {line.split(":")[0].strip() for line in interfaces} <= {"lo", "sit0", "ip6tnl0", "tunl0"}
    assert Path(f"/proc/{inside}/net/fib_trie").read_text().count("32 host") <= 2


@pytest.mark.parametrize(
    "source",
    [
        "call('ptrace', 16, 1, 0, 0)",  # PTRACE_ATTACH
        "call('ptrace', 0x4206, 1, 0, 0)",  # PTRACE_SEIZE
        "call('ptrace', 0, 0, 0, 0)",  # PTRACE_TRACEME
        "b = ctypes.create_string_buffer(16)\ncall('process_vm_readv', 1, b, 1, b, 1, 0)",
        "call('unshare', 0x10000000)",
        "call('unshare', 0x00020000)",
        "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)",
        "call('mount', b'none', b'/tmp', b'tmpfs', 0, None)",
        "call('mount', b'none', b'/', None, 32 | 4096, None)",  # remount read-write
        "call('umount2', b'/proc', 2)",
        "call('umount2', b'/home', 2)",
        "call('chroot', b'/tmp')",
        "call('shmget', 0, 1 << 20, 0o1600)",
        "call('memfd_create', b'x', 0)",
        "call('personality', 0x0040000) if False else call('keyctl', 0, 0, 0, 0, 0)",
        "call('syscall', 435, None, 0)",  # clone3
        "call('syscall', 425, 8, None)",  # io_uring_setup
        "call('syscall', 321, 0, None, 0)",  # bpf
        "call('syscall', 323, 0)",  # userfaultfd
        "call('klogctl', 3, ctypes.create_string_buffer(999), 999)",
        "r, w = os.pipe(); call('splice', os.open('/usr/bin/env', 0), None, w, None, 9, 0)",
        "call('flock', os.open('/usr/bin/env', 0), 2)",
        "call('mq_open', b'/x', 66, 0o600, None)",
        "call('semget', 0, 1, 0o1600)",
        "call('syscall', 0x40000000 + 39)",  # getpid of another calling convention
        "call('unshare', 0x80)",  # a time namespace
        "call('pidfd_getfd', os.pidfd_open(1), 3, 0) if hasattr(libc, 'pidfd_getfd') else "
        "call('syscall', 438, os.pidfd_open(1), 3, 0)",
        "os.fchmod(2, 0)",
        "os.open('/dev/tty', os.O_RDWR)",
        "os.ftruncate(0, 1 << 40)",
        "os.setresuid(0, 0, 0)",
        "os.chown('/usr/bin/env', 1000, 1000)",
        "os.setxattr('/usr/bin/env', 'user.x', b'x')",
        "os.pivot_root('/tmp', '/tmp') if hasattr(os, 'pivot_root') else "
        "call('syscall', 155, b'/tmp', b'/tmp')",
        "os.setuid(0)",
        "os.setgroups([0])",
        "os.mknod('disk', 0o60600, os.makedev(254, 0))",
        "os.sethostname(b'x') if hasattr(os, 'sethostname') else call('sethostname', b'x', 1)",
        "os.nice(-5)",
        "os.nice(5)",
        "os.setpriority(os.PRIO_PROCESS, 1, 10)",
        "os.setpriority(os.PRIO_USER, 0, 10)",
        "os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))",
        "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        "call('syscall', {'x86_64': 251, 'aarch64': 30}[os.uname().machine], 1, 1, 3 << 13)",
        "import resource; resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
        "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE)",
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        "import resource; resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))",
        "call('syscall', 444, None, 0, 1)",  # landlock_create_ruleset: its version
        "call('syscall', 445, 3, 1, None, 0)",
        "call('syscall', 446, 3, 0)",
        "call('syscall', 457, None, None, 0, 0)",  # statmount
        "call('syscall', 463, -100, None, 0, None, None, 0)",  # setxattrat, newer than the filter
        "call('syscall', 500)",
        "fcntl.lockf(os.open('/usr/bin/env', os.O_RDONLY), fcntl.LOCK_SH)",
        "fcntl.lockf(os.open('/usr/bin/env', os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)",
        "fcntl.fcntl(os.open('/usr/bin/env', 0), 37, bytes(32))",  # F_OFD_SETLK
        "fcntl.fcntl(os.open('/usr/bin/env', 0), 38, bytes(32))",  # F_OFD_SETLKW
        "for family in range(2, 46): socket.socketpair(family, socket.SOCK_STREAM)",
        "for family in range(2, 46):\n    try: socket.socketpair(family, socket.SOCK_DGRAM)\n"
        "    except PermissionError: continue\n    except OSError: pass\n    break\n"
        "else: raise OSError",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "open('/proc/1/mem', 'rb').read(1)",
        "open('/proc/1/environ', 'rb').read(1)",
        "open('/proc/1/maps').read(1)",
        "os.listdir('/proc/1/fd')",
        "open('/proc/1/fd/3', 'rb')",
        "os.readlink('/proc/1/fd/3')",
        "os.listdir('/proc/1/map_files')",
        "os.open('/proc/1/ns/pid', os.O_RDONLY)",
        "os.listdir('/proc/1/root')",
        "os.readlink('/proc/1/cwd')",
        "open('/proc/kcore', 'rb').read(1)",
        "open('/proc/kmsg').read(1)",
        "open('/dev/mem', 'rb').read(1)",
        "open('/dev/kmsg', 'rb').read(1)",
        "open('/dev/sda', 'rb').read(1)",
        "os.listdir('/sys')",
        "os.symlink('/etc/shadow', 'link'); open('link').read()",
        "os.symlink('/proc/1/root/etc', 'link'); os.listdir('link')",
        "os.symlink('/', 'link'); open('link/usr/x', 'w')",
        "os.link('/usr/bin/env', 'env')",
        "os.rename('/usr', '/tmp/usr')",
        "os.chmod('/usr/bin/env', 0o777)",
        "os.open('/usr', os.O_TMPFILE | os.O_RDWR)",
        "os.open('/proc/self/root/../../../../../var', os.O_RDONLY)",
        "fd = os.open('/', os.O_RDONLY); os.stat('../../etc/shadow', dir_fd=fd)",
        "call('io_setup', 1, ctypes.byref(ctypes.c_ulong())) if hasattr(libc, 'io_setup') else "
        "call('syscall', {'x86_64': 206}.get(os.uname().machine, 0), 1, "
        "ctypes.byref(ctypes.c_ulong()))",
        "call('inotify_init')",
        "call('inotify_init1', 0)",
        "call('inotify_add_watch', 0, b'/usr/bin', 1)",
        "call('fanotify_init', 0, 0)",
        "call('syscall', 451, 0, None, None, 0)",  # cachestat
        "fcntl.fcntl(os.open('/usr/bin', os.O_RDONLY), 1026, 1)",  # F_NOTIFY
        "fcntl.fcntl(os.open('/usr/bin/env', os.O_RDONLY), 1024, 0)",  # F_SETLEASE
        "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",  # F_SETPIPE_SZ
        "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)",
        "os.sched_setaffinity(0, os.sched_getaffinity(0))",
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "libc.mmap.restype = ctypes.c_long; call('mmap', None, 1 << 21, 3, 0x40022, -1, 0)",
        "os.open('/dev/ptmx', os.O_RDWR)",
        "os.openpty()",
        "os.listdir('/dev/pts')",
        "open('/dev/zero', 'rb')",
    ],
)
def test_ways_out_are_shut(sandbox: Sandbox, source: str) -> None:
    assert attempt(sandbox, source) == "denied"


def test_other_processes_cannot_be_seen(sandbox: Sandbox) -> None:
    source = "import os\nprint(sorted(int(p) for p in os.listdir('/proc') if p.isdigit()))"
    assert run(sandbox, source).output == b"[1, 2]\n"


@pytest.mark.parametrize("target", ["1", "os.getppid()", "-1", "0"])
@pytest.mark.parametrize("number", [9, 15, 19, 11, 2])
@pytest.mark.turn(3)
def test_the_supervisor_cannot_be_killed(sandbox: Sandbox, target: str, number: int) -> None:
    with sandbox.program(
        f"import os\nif input() == 'kill': os.kill({target}, {number})\nprint('alive')",
        limits=HASTY,
    ) as program:
        killed = program.run_script("kill\n")
        assert killed.status in ("ok", "error") or number == 19
        assert program.run_script("no\n").output == b"alive\n"


def test_no_signal_ends_the_supervisor(sandbox: Sandbox) -> None:
    source = (
        "import os\n"
        "if input() == 'kill':\n"
        "    for number in range(1, 65): os.kill(1, number)\n"
        "print('alive')"
    )
    with sandbox.program(source, limits=HASTY) as program:
        assert program.run_script("kill\n").output == b"alive\n"
        assert program.run_script("no\n").output == b"alive\n"


def test_an_interrupt_of_its_own_is_what_python_makes_of_it(sandbox: Sandbox) -> None:
    source = (
        "import os, signal\n"
        "try: os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    assert run(sandbox, source).output == b"interrupted\n"


def test_no_device_is_there_but_those_that_every_program_may_use(sandbox: Sandbox) -> None:
    seen = run(sandbox, "import os\nprint(*sorted(os.listdir('/dev')))").output.decode().split()
    assert seen == ["fd", "full", "null", "random", "shm", "stderr", "stdin", "stdout", "urandom"]


def test_the_supervisor_cannot_be_killed_through_a_descriptor(sandbox: Sandbox) -> None:
    source = (
        "import os, signal\n"
        "if input() == 'kill': signal.pidfd_send_signal(os.pidfd_open(1), 9)\nprint('alive')"
    )
    with sandbox.program(source, limits=HASTY) as program:
        assert program.run_script("kill\n").status in ("ok", "error")
        assert program.run_script("no\n").output == b"alive\n"


def test_sockets_hold_little(sandbox: Sandbox) -> None:
    """What lies in sockets is memory of the kernel, which no limit of ours counts."""
    source = (
        "import socket\nkept, size = [], 0\n"
        "try:\n"
        "    while True:\n"
        "        pair = socket.socketpair()\n        kept += pair\n"
        "        for end in pair:\n"
        "            end.setblocking(False)\n"
        "            try:\n                while True: size += end.send(bytes(1 << 16))\n"
        "            except BlockingIOError: pass\n"
        "except OSError: print(size)"
    )
    assert int(run(sandbox, source).output) < 32 * MIB


def test_a_crash_leaves_no_core(sandbox: Sandbox) -> None:
    with sandbox.program(
        "import ctypes, os\nprint(os.listdir('.'))\nif input() == 'crash': ctypes.string_at(0)"
    ) as program:
        assert program.run_script("crash\n").status == "error"
        assert program.run_script("no\n").output == b"[]\n"


def test_a_crash_leaves_no_core_to_a_program_that_takes_it(sandbox: Sandbox) -> None:
    """A limit of 1 says that to the kernel, and 0 does not (core(5), `fs/coredump.c`)."""
    source = "print(*[line for line in open('/proc/self/limits') if 'core' in line])"
    assert run(sandbox, source).output.split()[4:6] == [b"1", b"1"]


def test_the_host_has_no_name(sandbox: Sandbox) -> None:
    source = (
        "import ctypes, os, socket\nprint(os.uname().nodename, socket.gethostname())\n"
        "domain = ctypes.create_string_buffer(99)\n"
        "print(ctypes.CDLL(None).getdomainname(domain, 99), domain.value)"
    )
    assert run(sandbox, source).output.decode().split() == ["sandbox", "sandbox", "0", "b''"]


def test_pairs_of_sockets_work_as_they_should(sandbox: Sandbox) -> None:
    source = "import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))"
    assert run(sandbox, source).output == b"b'x'\n"


def test_limits_of_the_supervisor_are_not_worth_changing(sandbox: Sandbox) -> None:
    source = (
        "import resource\n"
        "try: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))\nexcept OSError: pass\n"
        "try: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\nexcept OSError: pass\n"
    )
    assert run(sandbox, source).status in ("ok", "error")
    assert run(sandbox, "print(1)").output == b"1\n"


def test_descriptors_of_the_supervisor_are_not_inherited(sandbox: Sandbox) -> None:
    source = "import os\nprint(sorted(os.listdir('/proc/self/fd'), key=int))"
    assert run(sandbox, source).output == b"['0', '1', '2', '3']\n"  # 3: the listing itself
    with sandbox.program(
        "import os\ndef f(): return sorted(os.listdir('/proc/self/fd'))"
    ) as program:
        opened = json.loads(program.call("f", []).output)["value"]
    assert len(opened) <= 7


def test_a_daemon_does_not_outlive_its_run(sandbox: Sandbox) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        while True:\n            open('/tmp/alive', 'a').write('x'); time.sleep(0.01)\n"
        "    os._exit(0)\ntime.sleep(0.2)\nprint(input())"
    )
    reader = "import os\nprint(os.path.getsize('/tmp/alive'))"
    with sandbox.program(
        f"if input() == 'read':\n    {reader.splitlines()[0]}\n"
        f"    {reader.splitlines()[1]}\nelse:\n"
        + "\n".join("    " + line for line in daemon.splitlines())
    ) as program:
        assert program.run_script("go\n1\n").output == b"1\n"
        first = program.run_script("read\n").output
        time.sleep(0.2)
        assert program.run_script("read\n").output == first


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.write(4, b'\\xff\\xff\\xff\\xff')",
        "import os\nos.write(4, b'\\0\\0\\0\\x02{]')",
        "import os\nos.close(4)",
        "import os\nwhile True: os.write(4, b'\\0' * 65536)",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "while True: pass",
    ],
)
def test_junk_on_the_channel_is_no_more_than_a_bad_answer(sandbox: Sandbox, source: str) -> None:
    body = source.replace("\n", "\n    ")
    with sandbox.program(f"def f():\n    {body}", limits=ENDLESS) as program:
        program.open_session()
        answers = [program.ask({"name": "f", "args": [], "kwargs": {"d": []}}) for _ in range(3)]
    for answer in answers:
        assert answer.status != "ok" or answer.output in (b"", b"{]", b'{"value": null}')
    assert answers[-1].status != "ok" or "os.write(4" in source
    assert run(sandbox, "print(1)").output == b"1\n"


def test_an_answer_is_limited_before_anyone_reads_it(sandbox: Sandbox) -> None:
    source = (
        "import os\n"
        "def f(size):\n"
        "    os.write(4, size.to_bytes(4, 'big'))\n"
        "    while True: os.write(4, b'[' * 65536)\n"
    )
    with sandbox.program(source) as program:
        assert program.call("f", [LIMITS.answer + 1]).status == "output"
        assert program.call("f", [2**32 - 1]).status == "output"
        answer = program.call("f", [LIMITS.answer // 2])
        assert answer.status == "output" or len(answer.output) == LIMITS.answer // 2


@pytest.mark.turn(4)
def test_limits_hold_while_a_session_waits(sandbox: Sandbox) -> None:
    source = (
        "import threading\n"
        "def f():\n"
        "    def grow():\n"
        "        x = []\n"
        "        while True: x.append(bytes(10**6))\n"
        "    threading.Thread(target=grow).start()\n"
    )
    limits = Limits(wall_seconds=1, memory=4096 * MIB)
    with sandbox.program("import time\ndef f(): return 1", limits=limits) as program:
        program.open_session()
        message = {"name": "f", "args": [], "kwargs": {"d": []}}
        assert program.ask(message).status == "ok"
        time.sleep(1.2)
        assert program.ask(message).status == "timeout"
    with sandbox.program(source) as program:
        program.open_session()
        program.ask(message)
        time.sleep(0.5)
        assert program.ask(message).status in ("memory", "error", "ok")


def test_a_broken_down_parent_is_replaced(sandbox: Sandbox) -> None:
    with Sandbox(sandbox.isolation, HASTY) as fresh:
        with fresh.program("print(1)") as program:
            fresh._process.kill()
            time.sleep(0.2)
            assert program.run_script("").status != "ok"
        assert run(fresh, "print(1)").output == b"1\n"


HOSTILE = [
    "import os\nwhile True:\n    try: os.fork()\n    except OSError: break",
    "import os, time\nfor _ in range(5):\n    if os.fork() == 0: os.setsid(); time.sleep(100)",
    "open('/tmp/a', 'w').write('x' * 10**6)\nimport os\nos.symlink('/', '/tmp/b')",
    "import os\nos.kill(1, 9)\nos.kill(-1, 9)",
    "x = ' ' * 10**12",
    "print('x' * 10**7)",
    "import os\nos.mkfifo('p')\nif os.fork() == 0: open('p')",
    "import os, threading, time\nfor _ in range(9):\n"
    "    threading.Thread(target=time.sleep, args=[9]).start()\nos._exit(0)",
    "import subprocess\nsubprocess.Popen(['sleep', '100'], start_new_session=True)",
    "import os\nfrom multiprocessing.shared_memory import SharedMemory\n"
    "SharedMemory('x', True, 1000)\nos.abort()",
]


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_many_hostile_programs_leave_nothing_behind(sandbox: Sandbox, count: int) -> None:
    def state() -> tuple[object, ...]:
        children = psutil.Process(sandbox._process.pid).children(recursive=True)
        mounts = [
            Path(f"/proc/{pid}/mountinfo").read_text()
            for pid in ("self", *(child.pid for child in children))
        ]
        opened = [len(os.listdir(f"/proc/{child.pid}/fd")) for child in children]
        own = len(os.listdir("/proc/self/fd"))
        return sorted(child.pid for child in children), mounts, opened, own

    def files() -> set[Path]:
        ours = Path(tempfile.gettempdir()).glob("sharegen-*")
        return {*Path("/dev/shm").iterdir(), *ours}

    limits = Limits(cpu_seconds=1, wall_seconds=2, memory=256 * MIB, disk=8 * MIB, output=MIB)
    run(sandbox, "pass", limits=limits)  # by which its server has opened what it keeps open
    before = state()
    files_before = files()
    for number in range(count):
        run(sandbox, HOSTILE[number % len(HOSTILE)], limits=limits)
    assert state() == before
    left = files() - files_before
    deadline = time.monotonic() + 60  # for those of a test that runs beside this one
    while left := {path for path in left if path.exists()}:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_closing_ends_every_process(sandbox: Sandbox) -> None:
    fresh = Sandbox(sandbox.isolation)
    family = [fresh._process.pid]
    family += [c.pid for c in psutil.Process(family[0]).children(recursive=True)]
    assert len(family) >= 2
    fresh.close()
    deadline = time.monotonic() + 5
    while any(map(_runs, family)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_runs, family))


def _runs(pid: int) -> bool:
    """A process that has ended may be there until the system's first process has reaped it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_scorer_takes_its_sandbox_along(sandbox: Sandbox) -> None:
    code = (
        "import os, sys, time\n"
        "from sharegen.results.sandbox.host import Sandbox\n"
        f"sandbox = Sandbox({sandbox.isolation!r})\n"
        "print(sandbox._process.pid, flush=True)\n"
        "with sandbox.program('while True: pass') as program:\n"
        "    program._send({'op': 'script'})\n"
        "    time.sleep(0.3)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(ended.stdout)
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(pid)
