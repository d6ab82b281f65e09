"""Verdicts: right programs pass, wrong ones fail, and no program can forge one."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharegen.common.program_tests import (
    CallTests,
    CheckTests,
    NoTests,
    ProgramProblem,
    ProgramTests,
    ScriptTests,
)
from sharegen.results.sandbox.limits import MIB, Limits
from sharegen.results.scoring.compiling import compile_error
from sharegen.results.scoring.completion import completion_of
from sharegen.results.scoring.score import Score, Scorer
from sharegen.workload.code import schema_named
from tests.results.chat_programs import fenced
from tests.results.sandboxes import isolation

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
SECRET = "8675309"


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    limits = Limits(cpu_seconds=0.5, wall_seconds=2, memory=256 * MIB, output=MIB)
    with Scorer(isolation(), limits) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def impatient() -> Iterator[Scorer]:
    """For programs of which none is to pass, so that none needs to be done in time."""
    limits = Limits(cpu_seconds=0.5, wall_seconds=0.6, memory=256 * MIB, output=MIB)
    with Scorer(isolation(), limits) as scorer:
        yield scorer


def judge(scorer: Scorer, tests: ProgramTests, program: str) -> Score:
    return scorer.score(ProgramProblem(tests), program)


SCRIPT = ScriptTests(["1 2\n", "3 4\n", "10 20\n"], ["3\n", "7\n", "30\n"])
CALL = CallTests("add", [[1, 2], [3, 4], [10, 20]], [3, [7], 30])
CHECK = CheckTests(["assert add(1, 2) == 3", "assert add(a=3, b=4) == SEVEN"], ["add"], "SEVEN = 7")

ADD = "def add(a, b): return a + b"


@pytest.mark.parametrize(
    ("tests", "program", "result", "passed"),
    [
        (SCRIPT, "print(sum(map(int, input().split())))", "passed", 3),
        (SCRIPT, "a, b = map(int, input().split())\nprint(3)", "wrong answer", 1),
        (SCRIPT, "a, b = map(int, input().split())\nprint(min(a + b, 9))", "wrong answer", 2),
        (SCRIPT, "print(sum(map(int, input().split())))\nraise ValueError", "runtime error", 0),
        (SCRIPT, "print(sum(map(int, input().split()))", "compile error", 0),
        (SCRIPT, "while True: pass", "timeout", 0),
        (SCRIPT, "x = [0] * 10**9", "memory", 0),
        (SCRIPT, "while True: print('3\\n' * 999)", "wrong answer", 0),
        (SCRIPT, "", "wrong answer", 0),
        (CALL, ADD, "passed", 3),
        (CALL, "class Solution:\n    def add(self, a, b): return a + b", "passed", 3),
        (CALL, "def add(a, b): return 3", "wrong answer", 1),
        (CALL, "def add(a, b): return a + c", "runtime error", 0),
        (CALL, "def sub(a, b): return a - b", "runtime error", 0),
        (CALL, "def add(a): return a", "runtime error", 0),
        (CALL, "def add(a, b) return a + b", "compile error", 0),
        (CALL, "def add(a, b):\n    while True: pass", "timeout", 0),
        (CALL, "def add(a, b): return [0] * 10**9", "memory", 0),
        (CALL, "def add(a, b): return lambda: a + b", "wrong answer", 0),
        (CALL, "def add(a, b): return (x for x in [a + b])", "wrong answer", 0),
        (CHECK, ADD, "passed", 2),
        (CHECK, "def add(a, b): return 3", "wrong answer", 1),
        (CHECK, "def add(a, b): return None + a", "runtime error", 0),
        (CHECK, "def add(a, b): return object()", "wrong answer", 0),
        (CHECK, "def add(x, y): return x + y", "runtime error", 1),
        (CHECK, "def add(a, b)", "compile error", 0),
        (CHECK, "def add(a, b):\n    while True: pass", "timeout", 0),
        (NoTests("there are none"), ADD, "unscorable", 0),
        (ScriptTests([], []), ADD, "unscorable", 0),
        (CheckTests(["assert add(1"], ["add"], ""), ADD, "unscorable", 0),
        (CheckTests(["assert add(1, 2)"], ["add"], "import nothing_such"), ADD, "unscorable", 0),
        (CheckTests(["assert add(object(), 2) == 3"], ["add"], ""), ADD, "unscorable", 0),
    ],
)  # fmt: skip
def test_verdicts(
    scorer: Scorer, tests: ProgramTests, program: str, result: str, passed: int
) -> None:
    score = judge(scorer, tests, program)
    assert (score.result, score.tests_passed) == (result, passed)
    assert score.passed == (result == "passed") and score.seconds > 0


@pytest.mark.parametrize(
    ("tests", "program"),
    [
        (ScriptTests(["\n"], [f"{'9' * 5001}\n"]), "print(10**5001 - 1)"),
        (ScriptTests([f"{'9' * 5001}\n"], [f"1{'0' * 5001}\n"]), "print(int(input()) + 1)"),
        (CallTests("f", [[5000]], [5001]), "def f(n): return len(str(10**n))"),
        (CallTests("f", [[1]], [1]), f"def f(n): return n % {'9' * 5001}"),
        (CheckTests(["assert len(str(f(5000))) == 5001"], ["f"], ""), "def f(n): return 10**n"),
    ],
)
def test_numbers_have_as_many_digits_as_they_have(
    scorer: Scorer, tests: ProgramTests, program: str
) -> None:
    """Python's own limit, of 4,300 digits, is none of a judge's."""
    problem = ProgramProblem(tests)
    assert scorer.score(problem, completion_of(fenced(program), True, problem)).passed


def test_a_method_is_not_taken_for_a_function_of_the_prelude(scorer: Scorer) -> None:
    row = {
        "question_content": "",
        "public_test_cases": '[{"input": "[1, 1]\\n1", "output": "2"}]',
        "metadata": {"func_name": "count"},
    }
    problem = schema_named("livecodebench").problem(row)
    program = (
        "class Solution:\n    def count(self, xs: List[int], x: int) -> int:\n"
        "        return Counter(xs)[x] * gcd(1, 2) * pow(1, 2, 5)\n"
    )
    assert scorer.score(problem, program).passed
    assert scorer.score(problem, program.replace("return", "return 0 *")).result == "wrong answer"
    listed = dataclasses.replace(problem, tests=CallTests("count", [[[1, 1], 1]], [[2]], True))
    assert scorer.score(listed, program).result == "wrong answer"  # where APPS takes either


def test_after_a_timeout_the_other_tests_are_not_run(scorer: Scorer) -> None:
    tests = ScriptTests(["x\n"] * 50, ["x\n"] * 50)
    assert judge(scorer, tests, "while True: pass").seconds < 10


def test_a_completion_goes_on_from_the_stub_with_the_prelude(scorer: Scorer) -> None:
    problem = ProgramProblem(CALL, stub="def add(a, b):\n", prelude="from math import fsum")
    assert scorer.score(problem, "    return int(fsum([a, b]))\n").passed


# Forging a verdict. The tests want SECRET, which a program must not be able to find or to fake.

WANTED = {
    "script": ScriptTests(["go\n"], [SECRET + "\n"]),
    "call": CallTests("f", [["go"]], [int(SECRET)]),
    "check": CheckTests([f"assert f('go') == {SECRET}"], ["f"], ""),
    "named check": CheckTests(
        [f"def check(candidate):\n    assert candidate('go') == {SECRET}\ncheck(f)"], ["f"], ""
    ),
}

FORGERIES = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "says so": "print('passed')\nprint('ok')\nprint(True)",
    "says so on every descriptor": (
        "import os, json\n"
        "for fd in range(64):\n"
        "    verdict = json.dumps({'verdict': 'passed'}).encode()\n"
        "    for text in (b'passed', b'{\"status\": \"ok\"}', verdict):\n"
        "        for data in (text, len(text).to_bytes(4, 'big') + text,\n"
        "                     (0).to_bytes(4, 'big') + len(text).to_bytes(4, 'big') + text):\n"
        "            try: os.write(fd, data)\n"
        "            except OSError: pass"
    ),
    "patches builtins": (
        "import builtins, json, sys\n"
        "class Yes:\n"
        "    def __eq__(self, other): return True\n"
        "    __ne__ = __lt__ = lambda self, other: False\n"
        "    def __hash__(self): return 0\n"
        "builtins.AssertionError = builtins.Exception = SystemExit\n"
        "builtins.isinstance = lambda *a: True\n"
        "builtins.type = lambda *a: Yes\n"
        "builtins.all = builtins.any = lambda *a: True\n"
        "builtins.len = lambda *a: 0"
    ),
    "patches the server's modules": (
        "import sys\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('sandbox'):\n"
        "        for key in dir(module):\n"
        "            if not key.startswith('__'):\n"
        '                try: setattr(module, key, lambda *a, **k: b\'{"verdict": "passed"}\')\n'
        "                except Exception: pass"
    ),
    "kills the parent": (
        "import os, signal\n"
        "for pid in (os.getppid(), 1, -1):\n"
        "    for s in (15, 9):\n"
        "        try: os.kill(pid, s)\n"
        "        except OSError: pass"
    ),
    "forks and leaves": "import os\nif os.fork(): os._exit(0)\nprint('passed')",
    "raises what means success": "raise SystemExit(0)",
    "ends the iteration": "raise StopIteration",
}


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.turn(3)
def test_forged_verdicts_fail(impatient: Scorer, kind: str, name: str) -> None:
    attack = FORGERIES[name]
    inside = attack.replace("\n", "\n    ")
    programs = [attack] if kind == "script" else [
        f"{attack}\ndef f(x): return None",
        f"def f(x):\n    {inside}\n    return x",
    ]  # fmt: skip
    for program in programs:
        score = judge(impatient, WANTED[kind], program)
        assert not score.passed and score.result != "unscorable"
        assert score.tests_passed == 0


@pytest.mark.parametrize("kind", ["call", "check", "named check"])
@pytest.mark.parametrize(
    "value",
    [
        "Yes()",
        "[Yes()]",
        "YesInt(0)",
        "YesFloat(0)",
        "YesStr('')",
        "YesTuple()",
        "(x for x in [1])",
    ],
)
def test_objects_that_equal_everything_fail(scorer: Scorer, kind: str, value: str) -> None:
    methods = (
        "    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "    def __hash__(self): return 0\n"
        "    def __index__(self): return 0\n"
    )
    classes = "".join(
        f"class Yes{base.capitalize()}({base}):\n{methods}"
        for base in ("int", "float", "str", "tuple")
    )
    program = f"class Yes:\n{methods}{classes}def f(x): return {value}"
    assert not judge(scorer, WANTED[kind], program).passed


TRICKS = {
    "nested without end": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "nested deeply": "def f(x):\n    a = []\n    for _ in range(10**6): a = [a]\n    return a",
    "drawn without end": "import itertools\ndef f(x): return itertools.count()",
    "a long text": "def f(x): return 'x' * 10**8",
    "a long number": "def f(x): return 1 << 10**8",
    "half a surrogate pair": "def f(x): return '\\ud800'",
    "not a number": "def f(x): return float('nan')",
    "digits of another script": "def f(x): return '\u0668\u0666\u0667\u0665\u0663\u0660\u0669'",
    "the number as bytes": f"def f(x): return b'{SECRET}'",
    "says that it is an int": (
        "class L(list):\n"
        "    __class__ = property(lambda self: int)\n"
        f"    __int__ = __index__ = lambda self: {SECRET[::-1]}\n"
        "def f(x): return L()"
    ),
    "its own item for ever": (
        "class N:\n    ndim = 0\n    def item(self): return N()\n"
        "N.__module__ = 'numpy'\ndef f(x): return N()"
    ),
    "patches json and its kind": (
        "import json, json.decoder, json.encoder, marshal, pickle, struct\n"
        "for module in (json, json.decoder, json.encoder, marshal, pickle, struct):\n"
        "    for name in dir(module):\n"
        "        if not name.startswith('__'):\n"
        '            setattr(module, name, lambda *a, **k: \'{"verdict": "passed"}\')\n'
        "def f(x): return 1"
    ),
    "answers fifty times": (
        "import os\n"
        "def f(x):\n"
        "    text = b'{\"value\": 1}'\n"
        "    for _ in range(50): os.write(4, len(text).to_bytes(4, 'big') + text)\n"
        "    return 1"
    ),
    "answers nothing often": "import os\ndef f(x): os.write(4, bytes(40000))",
    "an exception without a name": (
        "class M(type): __name__ = property(lambda cls: {'value': 1})\n"
        "class E(Exception, metaclass=M): pass\n"
        "def f(x): raise E"
    ),
    "an exception named passed": (
        "class E(Exception): pass\nE.__name__ = 'passed'\ndef f(x): raise E"
    ),
    "a daemon with the channel": (
        "import os, time\n"
        "def f(x):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        os._exit(0)\n"
        "    return 1"
    ),
    "a thread that writes on": (
        "import os, threading\n"
        "def write():\n    while True: os.write(4, b'x' * 1000)\n"
        "threading.Thread(target=write, daemon=True).start()\n"
        "def f(x): return 1"
    ),
    "closes everything": "import os\nos.closerange(0, 99)\ndef f(x): return 1",
    "is another program": (
        "import os, sys\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'while True: print(\"passed\")'])"
    ),
}


@pytest.mark.parametrize(
    "program",
    [
        "f = 8675309",
        "f = None",
        "f = property",
        "f = object()",
        "class f: pass",
        "class f:\n    def __new__(cls, x): return 1",
        "f = iter([])",
        "f = NotImplemented",
        "class M(type):\n    __name__ = property(lambda cls: 5)\nclass f(metaclass=M): pass",
        "import json\njson.dumps = lambda *_: 'junk'\ndef f(x): return 1",
        "import json\njson.dumps = lambda *_: '{\"value\": 5}'\ndef f(x): return 1",
        "import sys\nsys.modules['sandbox.program'].Program.does = None\ndef f(x): return 1",
        "",
    ],
)
def test_what_is_no_function_is_wrong_and_not_unscorable(scorer: Scorer, program: str) -> None:
    """Whatever a program has instead, a problem's programs are all counted."""
    for tests in (WANTED["check"], WANTED["named check"]):
        score = judge(scorer, tests, program)
        assert not score.passed and score.result != "unscorable"


@pytest.mark.parametrize("kind", ["call", "check"])
@pytest.mark.parametrize("name", TRICKS)
@pytest.mark.turn(3)
def test_tricks_with_answers_fail(scorer: Scorer, kind: str, name: str) -> None:
    score = judge(scorer, WANTED[kind], TRICKS[name])
    assert not score.passed and score.result != "unscorable"
    assert judge(scorer, WANTED[kind], f"def f(x): return {SECRET}").passed


SEARCHES = [
    # its own memory
    "import re\n"
    "found = []\n"
    "for line in open('/proc/self/maps'):\n"
    "    low, high = (int(x, 16) for x in line.split()[0].split('-'))\n"
    "    if 'r' in line.split()[1] and '[v' not in line:\n"
    "        try:\n"
    "            with open('/proc/self/mem', 'rb') as file:\n"
    "                file.seek(low)\n"
    "                found += re.findall(PATTERN, file.read(high - low))\n"
    "        except (OSError, OverflowError, ValueError): pass\n",
    # objects that the interpreter knows
    "import gc, re\n"
    "found = [m for o in gc.get_objects() for m in re.findall(PATTERN, repr(o).encode())]\n",
    # frames above
    "import re, sys\n"
    "found, frame = [], sys._getframe()\n"
    "while frame:\n"
    "    found += re.findall(PATTERN, repr((frame.f_locals, frame.f_globals)).encode())\n"
    "    frame = frame.f_back\n",
    # every file that can be read
    "import os, re\n"
    "found = []\n"
    "for top in ('/home', '/tmp', '/dev/shm', '/sandbox', '/etc', '/proc/1', '/proc/self'):\n"
    "    for folder, _, files in os.walk(top):\n"
    "        for name in files:\n"
    "            path = os.path.join(folder, name)\n"
    "            try:\n"
    "                if os.path.isfile(path):\n"
    "                    found += re.findall(PATTERN, open(path, 'rb').read(10**6))\n"
    "            except OSError: pass\n",
    # descriptors and other processes
    "import os, re\n"
    "found = []\n"
    "for pid in [p for p in os.listdir('/proc') if p.isdigit()]:\n"
    "    for name in ('environ', 'cmdline', 'fd/0', 'fd/1', 'fd/3', 'fd/4', 'fd/5', 'mem'):\n"
    "        try:\n"
    "            fd = os.open(f'/proc/{pid}/{name}', os.O_RDONLY | os.O_NONBLOCK)\n"
    "            found += re.findall(PATTERN, os.read(fd, 10**6))\n"
    "        except OSError: pass\n",
]


@pytest.mark.parametrize("kind", ["script", "call", "check"])
@pytest.mark.parametrize("search", range(len(SEARCHES)))
@pytest.mark.turn(3)
def test_expected_values_are_nowhere_to_be_found(scorer: Scorer, kind: str, search: int) -> None:
    """Even after a right answer went through the same sandbox."""
    right = {"script": f"print({SECRET})"}.get(kind, f"def f(x): return {SECRET}")
    for _ in range(3):
        assert judge(scorer, WANTED[kind], right).passed
    # the pattern is spelled so that the search does not find itself
    hunt = SEARCHES[search].replace("PATTERN", f"b'{SECRET[:3]}[{SECRET[3]}]{SECRET[4:]}'")
    finish = "found = [m for m in found if m]\n"
    if kind == "script":
        program = hunt + finish + "print(found[0].decode() if found else 'nothing')"
    else:
        program = hunt + finish + "def f(x): return int(found[0]) if found else None"
    score = judge(scorer, WANTED[kind], program)
    assert score.result in ("wrong answer", "runtime error", "timeout")  # it may eat its own input


def test_the_search_of_memory_would_find_them(scorer: Scorer) -> None:
    hunt = SEARCHES[0].replace("PATTERN", f"b'{SECRET[:3]}[{SECRET[3]}]{SECRET[4:]}'")
    problem = ProgramProblem(WANTED["script"], prelude=f"x = 'it is {SECRET}'")
    assert scorer.score(problem, hunt + "print(found[0].decode())").passed


@pytest.mark.turn(4)
def test_slow_comparisons_are_the_programs_own_loss(scorer: Scorer) -> None:
    """Ints whose hashes collide take quadratic time to put in a set: not outside, at least."""
    program = "def f(x): return {k * (2**61 - 1) for k in range(1, 20000)}"
    assert not judge(scorer, WANTED["call"], program).passed
    score = judge(scorer, WANTED["check"], program)
    assert not score.passed and score.result != "unscorable"


def test_values_that_break_a_check_are_wrong_and_not_unscorable(scorer: Scorer) -> None:
    deep = (
        "import os\n"
        "def f(x):\n"
        "    text = b'{\"value\": ' + b'[' * 900 + b']' * 900 + b'}'\n"
        "    os.write(4, len(text).to_bytes(4, 'big') + text)\n"
        "    return 1\n"
    )
    tests = CheckTests(["assert f(f(0)) == f(0)"], ["f"], "")
    score = judge(scorer, tests, deep)
    assert not score.passed and score.result != "unscorable"


def test_answers_of_one_check_do_not_reach_the_next(scorer: Scorer) -> None:
    tests = CheckTests(
        ["seen = f(1)\nassert seen == 1", "assert 'seen' not in globals()\nf(1)"], ["f"], ""
    )
    assert judge(scorer, tests, "def f(x): return x").passed


# The datasets themselves


@pytest.mark.skipif(not DATA.exists(), reason="needs HumanEval")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_canonical_solutions_of_humaneval_all_pass(scorer: Scorer, every: int) -> None:
    schema = schema_named("humaneval")
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    with Scorer(scorer._candidates.isolation, Limits(cpu_seconds=10, wall_seconds=30)) as patient:
        scores = [
            patient.score(schema.problem(row), row["canonical_solution"]) for row in rows[::every]
        ]
    assert sum(score.passed for score in scores) == len(scores) == 164 // every


@pytest.mark.skipif(not DATA.exists(), reason="needs HumanEval")
@pytest.mark.slow
def test_broken_solutions_of_humaneval_fail(scorer: Scorer) -> None:
    schema = schema_named("humaneval")
    with gzip.open(DATA / "HumanEval.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file][:40]
    for row in rows:
        assert not scorer.score(schema.problem(row), "    return None\n").passed
        assert not scorer.score(schema.problem(row), "    import os\n    os._exit(0)\n").passed


MUTATIONS = [
    (r"\+", "-"),
    ("True", "False"),
    (r"\b1\b", "2"),
    ("<", ">"),
    (r"\b0\b", "1"),
    ("==", "!="),
]


@pytest.mark.skipif(not DATA.exists(), reason="needs the APPS sample")
@pytest.mark.slow
def test_solutions_of_apps_pass_and_small_mutations_fail(scorer: Scorer) -> None:
    schema = schema_named("apps")
    rows = [json.loads(line) for line in (DATA / "apps" / "train_5.jsonl").open()]
    with Scorer(scorer._candidates.isolation, Limits(cpu_seconds=10, wall_seconds=30)) as patient:
        for row in rows:
            problem = schema.problem(row)
            solutions = sorted(json.loads(row["solutions"]), key=len)[:6]
            for solution in solutions:
                assert patient.score(problem, solution).passed, row["problem_id"]
            mutants = {
                re.sub(pattern, new, solutions[0]) for pattern, new in MUTATIONS
            } - {solutions[0]}  # fmt: skip
            failed = [not scorer.score(problem, mutant).passed for mutant in mutants]
            assert sum(failed) >= max(1, len(failed) - 2), row["problem_id"]


def test_a_program_that_does_not_compile_says_why() -> None:
    """The compiler's message, whatever it costs the compiler to come to it."""
    assert compile_error("x = 1\nif x\n    y = 2\n") == "line 2: expected ':'"
    assert compile_error("x = 1") is None
    for hostile in ("-" * 200_000 + "1", "(" * 5_000, "a\0b", "x = '\ud800'"):
        said = compile_error(hostile)
        assert said and "\n" not in said and len(said) <= 200
