"""What a program is owed by the sandbox, and which kind of isolation is found."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time

import pytest

from sharegen.results.sandbox import literal
from sharegen.results.sandbox.host import KINDS, Sandbox, SandboxError, choose_isolation
from sharegen.results.sandbox.limits import MIB, Limits
from tests.results.sandboxes import HASTY, namespaces_work, run

# What a program is owed


def test_script_reads_input_and_writes_output(sandbox: Sandbox) -> None:
    source = "import sys\nprint(input())\nsys.stdout.write(sys.stdin.read().upper())"
    assert run(sandbox, source, "first\nü\n").output.decode() == "first\nÜ\n"


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "import os\nprint(sum(map(int, os.read(0, 100).split())))",
        "print(sum(map(int, open('/dev/stdin').read().split())))",
        "if __name__ == '__main__':\n    print(int(input()) + int(input()))\n    exit()",
        "import threading\nthreading.stack_size(1 << 26)\n"
        "threading.Thread(target=lambda: print(int(input()) + int(input()))).start()",
        "import atexit, io, sys\nsys.stdout = io.StringIO()\n"
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\n"
        "print(int(input()) + int(input()))",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "print(P(int(input())).x + int(input()))",
        "import os, sys\nsys.setrecursionlimit(10**6)\n"
        "def f(n): return 0 if n == 0 else f(n - 1)\nprint(int(input()) + int(input()) + f(50000))",
        "from multiprocessing import Pool\n"
        "if __name__ == '__main__':\n"
        "    with Pool(2) as pool: print(sum(pool.map(int, [input(), input()])))",
    ],
)
def test_usual_ways_of_input_and_output_work(sandbox: Sandbox, source: str) -> None:
    answer = run(sandbox, source, "3\n4\n")
    assert (answer.status, answer.output) == ("ok", b"7\n")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("print(1)", "ok"),
        ("def f(:\n  pass", "compile"),
        ("(" * 5000 + ")" * 5000, "compile"),
        ("x = '\0'", "compile"),
        ("1 / 0", "error"),
        ("import sys\nsys.exit(3)", "error"),
        ("raise SystemExit('no')", "error"),
        ("import os\nos.abort()", "error"),
        ("def f(): f()\nf()", "error"),
        ("import os\nos._exit(0)", "ok"),
        ("x = [0] * 10**10", "memory"),
        ("x = []\nwhile True: x.append(' ' * 10**6)", "memory"),
    ],
)
def test_status_says_how_a_script_ended(sandbox: Sandbox, source: str, status: str) -> None:
    assert run(sandbox, source).status == status


def test_numpy_is_there_where_it_is_installed(sandbox: Sandbox) -> None:
    pytest.importorskip("numpy")
    limits = Limits(memory=1024 * MIB)
    assert run(sandbox, "import numpy\nprint(numpy.arange(4).sum())", "", limits).output == b"6\n"


VALUES = [
    *(None, True, 0, -(2**62), 10**5000, 1.5, -0.0, float("inf"), 2 + 3j, "ü\ud800", b"\0\xff"),
    *([], [[1], ["a"]], (1, (2,)), {1, 2}, frozenset({3}), {"a": [1], (1, 2): {3}}, range(1, 9, 2)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_survive_the_way_in_and_out(sandbox: Sandbox, value: object) -> None:
    with sandbox.program("def same(x): return x") as program:
        answer = program.call("same", literal.encode([value]))
    back = literal.decode(json.loads(answer.output)["value"])
    assert back == value and type(back) is type(value)


def test_nan_and_iterators_keep_their_nature() -> None:
    nan = literal.decode(json.loads(json.dumps(literal.encode(float("nan")))))
    assert nan != nan
    drawn = literal.decode(literal.encode(iter([1, 2])))
    assert drawn != [1, 2] and list(drawn) == [1, 2]


@pytest.mark.parametrize("data", [{}, {"z": 1}, {"t": 1}, {"s": [[1]]}, {"i": "g"}, {"d": [[1]]}])
def test_broken_literals_are_refused(data: object) -> None:
    with pytest.raises(literal.NotLiteral):
        literal.decode(data)


@pytest.mark.parametrize("source", ["object()", "iter(int, 1)", "lambda: 1", "deep()"])
def test_values_without_a_literal_form_are_refused(sandbox: Sandbox, source: str) -> None:
    deep = "def deep():\n    x = []\n    for _ in range(9999): x = [x]\n    return x\n"
    with sandbox.program(f"{deep}def f(): return {source}") as program:
        assert json.loads(program.call("f", []).output) == {"raised": "NotLiteral"}


def test_subclasses_come_out_as_what_they_extend(sandbox: Sandbox) -> None:
    source = (
        "class Yes(int):\n"
        "    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "from collections import Counter, OrderedDict, namedtuple\n"
        "def f(): return [Yes(3), Counter('aa'), namedtuple('P', 'x')(1), OrderedDict(a=Yes(1))]"
    )
    with sandbox.program(source) as program:
        value = literal.decode(json.loads(program.call("f", []).output)["value"])
    assert value == [3, {"a": 2}, (1,), {"a": 1}]
    assert [type(item) for item in value] == [int, dict, tuple, dict]


def test_a_session_keeps_its_state_and_a_call_does_not(sandbox: Sandbox) -> None:
    with sandbox.program("seen = []\ndef f(x):\n    seen.append(x)\n    return seen") as program:
        assert json.loads(program.call("f", [1]).output) == {"value": [1]}
        assert json.loads(program.call("f", [2]).output) == {"value": [2]}
        program.open_session()
        for number in (1, 2):
            answer = program.ask({"name": "f", "args": [number], "kwargs": {"d": []}})
        assert json.loads(answer.output) == {"value": [1, 2]}


def test_runs_of_one_program_share_nothing_but_its_folder(sandbox: Sandbox) -> None:
    with sandbox.program("import os\nprint(os.listdir(), os.getpid())\nopen('x', 'w')") as program:
        first, second = program.run_script("").output, program.run_script("").output
    assert first.startswith(b"[]") and second.startswith(b"['x']")


# Which isolation, and what without any


@pytest.mark.skipif(not namespaces_work(), reason="no namespaces on this system")
def test_a_way_to_isolate_is_found_where_there_is_one() -> None:
    assert choose_isolation() == ("bubblewrap" if shutil.which("bwrap") else "namespaces")
    assert choose_isolation(unsafe=True) != "none"


def test_without_any_isolation_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    from sharegen.results.sandbox import host

    monkeypatch.setattr(host, "fault_of", lambda kind: f"{kind}: not here")
    with pytest.raises(SandboxError, match=r"namespaces: not here.*--unsafe-execution"):
        choose_isolation()
    assert choose_isolation(unsafe=True) == "none"


def test_a_missing_bubblewrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxError, match="bubblewrap: not installed"):
        Sandbox("bubblewrap")


@pytest.mark.turn(4)
def test_limits_hold_without_isolation() -> None:
    """The way on that a user can insist on, with harmless programs of our own."""
    with Sandbox("none", HASTY) as sandbox:
        assert run(sandbox, "print(int(input()) + 1)", "4").output == b"5\n"
        assert run(sandbox, "1 / 0").status == "error"
        started = time.monotonic()
        assert run(sandbox, "import time\ntime.sleep(60)").status == "timeout"
        assert run(sandbox, "while True: print('x' * 1000)").status == "output"
        assert time.monotonic() - started < 30
        folder = (
            run(sandbox, "import os\nopen('x', 'w')\nprint(os.getcwd())").output.decode().strip()
        )
        assert not os.path.exists(folder)


def test_a_home_inside_pythons_own_folder_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of that folder would be: better no sandbox than one with the user's files in it."""
    monkeypatch.setenv("HOME", sys.base_prefix + "/lib")
    for isolation in KINDS:
        with pytest.raises(SandboxError, match="holds your home"):
            Sandbox(isolation)
