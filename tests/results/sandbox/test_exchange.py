"""Tests that go on with what a program gives back: right programs pass, others fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharegen.common.program_tests import CheckTests, ProgramProblem
from sharegen.results.sandbox.limits import MIB, Limits
from sharegen.results.scoring.score import Scorer
from tests.results.sandboxes import isolation

STUB = """\
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    a: int
    b: int


class Node:
    def __init__(self, value, next=None):
        self.value = value
        self.next = next


class Empty(Exception):
    pass


"""


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    limits = Limits(cpu_seconds=2, wall_seconds=6, memory=256 * MIB, output=MIB)
    with Scorer(isolation(), limits) as scorer:
        yield scorer


def result(scorer: Scorer, check: str, program: str, stub: str = STUB) -> str:
    """The verdict on a program whose function is called `f`."""
    body = "\n".join(f"    {line}" for line in check.splitlines())
    source = f"def check(candidate):\n{body}\ncheck(f)\n"
    tests = CheckTests([source], ["f"], stub)
    return scorer.score(ProgramProblem(tests, stub), program).result


RIGHT = {
    "a closure": ("assert candidate(2)(3) == 5", "def f(a): return lambda b: a + b"),
    "a closure that counts": (
        "count = candidate()\nassert [count(), count(), count()] == [1, 2, 3]",
        "def f():\n    n = 0\n    def count():\n        nonlocal n\n        n += 1\n"
        "        return n\n    return count",
    ),
    "functions in a dict": (
        "ops = candidate()\nassert ops['add'](1, 2) == 3 and callable(ops['neg'])",
        "def f(): return {'add': lambda a, b: a + b, 'neg': lambda a: -a}",
    ),
    "a function that is handed over": (
        "assert candidate(lambda x: x * 2, [1, 2]) == [2, 4]",
        "def f(g, xs): return [g(x) for x in xs]",
    ),
    "functions of Python's": (
        "import math, operator\nassert candidate(math.sqrt, 9) == 3 and candidate(str, 1) == '1'\n"
        "assert candidate(operator.neg, 1) == -1 and candidate(len, 'ab') == 2\n"
        "assert candidate(str.upper, 'a') == 'A' and candidate(operator.itemgetter(0), [7]) == 7",
        "def f(g, x): return g(x)",
    ),
    "functions composed": (
        "g = candidate(lambda x: x + 1, lambda x: x * 2)\nassert g(3) == 7\n"
        "assert candidate(g, g)(1) == 7",
        "def f(g, h): return lambda x: g(h(x))",
    ),
    "a decorator": (
        "calls = []\n@candidate\ndef square(x):\n    calls.append(x)\n    return x * x\n"
        "assert square(3) == square(3) == 9 and calls == [3]",
        "import functools\ndef f(g):\n    return functools.lru_cache(None)(g)",
    ),
    "a function that raises": (
        "def bad():\n    raise KeyError('k')\n"
        "try:\n    candidate(bad)\nexcept ValueError as e:\n    assert str(e) == \"bad: 'k'\"\n"
        "else:\n    assert False",
        "def f(g):\n    try: g()\n    except KeyError as e: raise ValueError(f'bad: {e}')",
    ),
    "a list in place": (
        "xs = [3, 1, 2]\nassert candidate(xs) is None\nassert xs == [1, 2, 3]",
        "def f(xs): xs.sort()",
    ),
    "rows of a list in place": (
        "m = [[1, 2], [3, 4]]\nrow = m[0]\ncandidate(m)\nassert m == [[3, 1], [4, 2]]\n"
        "assert row is m[0]",
        "def f(m):\n    n = [list(r) for r in zip(*m[::-1])]\n"
        "    for a, b in zip(m, n): a[:] = b",
    ),
    "other things in place": (
        "d, s, b = {'a': [1]}, {1}, bytearray(b'x')\ncandidate(d, s, b)\n"
        "assert d == {'a': [1, 2], 'b': 3} and s == {1, 2} and b == b'xy'",
        "def f(d, s, b):\n    d['a'].append(2); d['b'] = 3; s.add(2); b.extend(b'y')",
    ),
    "kinds of collections in place": (
        "from collections import Counter, OrderedDict, defaultdict, deque\n"
        "q, c, d = deque([1, 2], maxlen=3), Counter('aab'), defaultdict(list)\n"
        "o = OrderedDict(a=1)\ncandidate(q, c, d, o)\nassert list(q) == [2, 3, 4]\n"
        "assert c['a'] == 3 and c['z'] == 0 and d['k'] == [1] and d['new'] == []\n"
        "assert list(o) == ['b', 'a']",
        "def f(q, c, d, o):\n    q.append(3); q.append(4); c['a'] += 1; d['k'].append(1)\n"
        "    o['b'] = 2; o.move_to_end('a')",
    ),
    "an argument given back": (
        "xs = [2, 1]\nassert candidate(xs) is xs and xs == [1, 2]",
        "def f(xs):\n    xs.sort()\n    return xs",
    ),
    "an argument kept": (
        "xs = []\nadd = candidate(xs)\nadd(1)\nadd(2)\nassert xs == [1, 2]\nxs.clear()\n"
        "assert add(3) == 1",
        "def f(xs):\n    def add(x):\n        xs.append(x)\n        return len(xs)\n    return add",
    ),
    "an argument twice": (
        "xs = [1]\ncandidate(xs, xs)\nassert xs == [1, 2, 3]",
        "def f(a, b):\n    assert a is b\n    a.append(2); b.append(3)",
    ),
    "a default that remembers": (
        "assert candidate(1) == [1] and candidate(2) == [1, 2]",
        "def f(x, seen=[]):\n    seen.append(x)\n    return seen",
    ),
    "a state that the test changes": (
        "get, put = candidate()\nget().append(1)\nput(2)\nassert get() == [1, 2]",
        "def f():\n    kept = []\n    return (lambda: kept), kept.append",
    ),
    "keywords": ("xs = [1]\ncandidate(into=xs, n=2)\nassert xs == [1, 2]",
                 "def f(n, into): into.append(n)"),
    "a generator without end": (
        "from itertools import islice\ng = candidate()\n"
        "assert [next(g) for _ in range(3)] == [0, 1, 2]\nassert list(islice(g, 100))[-1] == 102",
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
    ),
    "an iterator without end": (
        "import itertools\nassert list(itertools.islice(candidate(), 3)) == [5, 6, 7]\n"
        "assert list(zip('ab', candidate())) == [('a', 5), ('b', 6)]",
        "import itertools\ndef f(): return itertools.count(5)",
    ),
    "a generator that is asked no more than is there": (
        "g = candidate()\nassert [next(g), next(g)] == [1, 2]",
        "def f():\n    yield 1\n    yield 2\n    while True: pass",
    ),
    "a generator that ends": (
        "g = candidate(3)\nassert list(g) == [0, 1, 2] and list(g) == []\n"
        "assert sum(candidate(3000)) == 4498500 and next(candidate(0), None) is None\n"
        "import types\nassert isinstance(candidate(1), types.GeneratorType)",
        "def f(n):\n    for i in range(n): yield i",
    ),
    "a generator that raises": (
        "g = candidate()\nassert next(g) == 1\ntry:\n    next(g)\n    assert False\n"
        "except ValueError as e:\n    assert str(e) == 'over'",
        "def f():\n    yield 1\n    raise ValueError('over')",
    ),
    "a generator that is sent to": (
        "g = candidate()\nnext(g)\nassert g.send(2) == 2 and g.send(3) == 5",
        "def f():\n    total = 0\n    while True:\n        total += yield total",
    ),
    "a generator of lists": (
        "assert [list(p) for p in candidate([1, 2])] == [[], [1], [2], [1, 2]]",
        "def f(xs):\n    for m in range(1 << len(xs)):\n"
        "        yield [x for i, x in enumerate(xs) if m >> i & 1]",
    ),
    "an iterator that is handed over": (
        "import itertools\nassert candidate(itertools.count()) == [0, 1, 2]\n"
        "assert candidate(x * x for x in range(9)) == [0, 1, 4]",
        "def f(it): return [next(it) for _ in range(3)]",
    ),
    "what an exception says": (
        "try:\n    candidate(-1)\nexcept ValueError as e:\n    assert str(e) == 'n is -1'\n"
        "    assert e.args == ('n is -1',)\nelse:\n    assert False",
        "def f(n): raise ValueError(f'n is {n}')",
    ),
    "what exceptions of many kinds say": (
        "for kind, said in ((0, \"'k'\"), (1, '[Errno 2] no: \\'x\\''), (2, 'division by zero')):\n"
        "    try:\n        candidate(kind)\n"
        "    except (KeyError, FileNotFoundError, ZeroDivisionError) as e:\n"
        "        assert str(e) == said, str(e)\n    else:\n        assert False",
        "def f(n):\n    if n == 0: return {}['k']\n"
        "    if n == 1: raise FileNotFoundError(2, 'no', 'x')\n    return 1 / 0",
    ),
    "an exception of the program's": (
        "try:\n    candidate()\nexcept Exception as e:\n"
        "    assert type(e).__name__ == 'Broke' and isinstance(e, ValueError)\n"
        "    assert str(e) == 'broke: 5' and e.amount == 5\nelse:\n    assert False",
        "class Broke(ValueError):\n    def __init__(self, amount):\n        self.amount = amount\n"
        "    def __str__(self): return f'broke: {self.amount}'\ndef f(): raise Broke(5)",
    ),
    "an exception by the program's name for it": (
        "try:\n    candidate()\nexcept Broke as e:\n    assert str(e) == 'no'\n"
        "else:\n    assert False",
        "class Broke(Exception): pass\ndef f(): raise Broke('no')",
    ),
    "an exception that the prompt defines": (
        "try:\n    candidate()\nexcept Empty as e:\n    assert str(e) == 'nothing'\n"
        "else:\n    assert False",
        "def f(): raise Empty('nothing')",
    ),
    "objects of the prompt's classes": (
        "assert candidate(Point(1, 2)) == Point(2, 1)\nassert candidate(Point(3)).y == 3\n"
        "assert candidate(Point(1)) in {Point(0, 1)}",
        "def f(p): return Point(p.y, p.x)",
    ),
    "members and named tuples of the prompt": (
        "assert candidate(Color.RED, Pair(1, 2)) == (Color.BLUE, Pair(2, 1))\n"
        "assert candidate(Color.RED, Pair(1, 2))[0] is Color.BLUE",
        "def f(c, p):\n    assert c is Color.RED and p.a == 1\n"
        "    return Color.BLUE, Pair(p.b, p.a)",
    ),
    "a linked list, turned around in place": (
        "last = Node(3)\nfirst = Node(1, Node(2, last))\nhead = candidate(first)\n"
        "assert head is last and head.next.next is first and first.next is None",
        "def f(node):\n    before = None\n    while node:\n"
        "        node.next, before, node = before, node, node.next\n    return before",
    ),
    "an object of the program's": (
        "a = candidate(3)\na.deposit(4)\nassert a.balance == 7 and a.history == [4]\n"
        "a.balance = 1\nassert a.show() == 'has 1' and str(a) == 'Account(1)' and repr(a) == 'A'\n"
        "assert type(a).__name__ == 'Account' and not hasattr(a, 'nothing')",
        "class Account:\n    def __init__(self, n): self.balance, self.history = n, []\n"
        "    def deposit(self, n): self.balance += n; self.history.append(n)\n"
        "    def show(self): return f'has {self.balance}'\n"
        "    def __str__(self): return f'Account({self.balance})'\n"
        "    def __repr__(self): return 'A'\n"
        "def f(n): return Account(n)",
    ),
    "objects that are compared with each other": (
        "a, b, c = candidate(1), candidate(1), candidate(2)\n"
        "assert a == b and a != c and a < c and sorted([c, a])[0] == a and (a + c).n == 3",
        "import functools\n@functools.total_ordering\nclass N:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def __eq__(self, o): return self.n == o.n\n"
        "    def __lt__(self, o): return self.n < o.n\n"
        "    def __add__(self, o): return N(self.n + o.n)\ndef f(n): return N(n)",
    ),
    "an object with length and items": (
        "s = candidate([1, 2, 3])\nassert len(s) == 3 and s[0] == 1 and list(s) == [1, 2, 3]\n"
        "assert 2 in s and 9 not in s and bool(s) and list(reversed(s)) == [3, 2, 1]\ns[1] = 5\n"
        "assert s[1:] == [5, 3]\nwith s as t:\n    assert t[0] == 1",
        "class S:\n    def __init__(self, xs): self.xs = list(xs)\n"
        "    def __len__(self): return len(self.xs)\n"
        "    def __getitem__(self, i): return self.xs[i]\n"
        "    def __setitem__(self, i, x): self.xs[i] = x\n"
        "    def __enter__(self): return self\n    def __exit__(self, *_): pass\n"
        "def f(xs): return S(xs)",
    ),
    "an object of the test's": (
        "class Dog:\n    def __init__(self): self.name = 'Rex'\n"
        "    def speak(self): return 'Woof'\n"
        "assert candidate(Dog()) == 'Rex: Woof'",
        "def f(dog): return f'{dog.name}: {dog.speak()}'",
    ),
    "a coroutine": (
        "import asyncio\nassert asyncio.run(candidate(3)) == 4",
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1",
    ),
    "numbers and dates with classes of their own": (
        "from decimal import Decimal\nfrom fractions import Fraction\n"
        "from datetime import date, timedelta\n"
        "assert candidate(Decimal('0.1')) == Decimal('0.2')\n"
        "assert candidate(Fraction(1, 3)) == Fraction(2, 3)\n"
        "assert candidate(timedelta(1)) == timedelta(2)",
        "def f(x): return x + x",
    ),
    "types": ("assert candidate(3) is int and candidate('a') == str", "def f(x): return type(x)"),
    "a named tuple of the program's": (
        "p = candidate(1, 2)\nassert p.x == 1 and p == (1, 2)",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\n"
        "def f(x, y): return P(x, y)",
    ),
    "a constant of the program's": ("assert candidate() == LIMIT + 1",
                                    "LIMIT = 10\ndef f(): return LIMIT + 1"),
    "a module that the program imports": ("assert candidate(9) == math.sqrt(9)",
                                          "import math\ndef f(x): return math.sqrt(x)"),
    "what is printed": (
        "import contextlib, io\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
        "    candidate(2)\nassert out.getvalue() == '1\\n2\\n'\ncandidate(1)",
        "def f(n):\n    for i in range(n): print(i + 1)",
    ),
    "what is read": (
        "import builtins, io, sys\nfrom unittest import mock\n"
        "sys.stdin = io.StringIO('5\\n6\\n7 8\\n9')\n"
        "assert candidate() == ['5', '6\\n', '7 8\\n9']\n"
        "with mock.patch('builtins.input', return_value='4'):\n    assert next(g()) == '4'",
        "import sys\ndef f(): return [input(), sys.stdin.readline(), sys.stdin.read()]\n"
        "def g(): yield input()",
    ),
    "what a function is called": (
        "@candidate\ndef twice(x):\n    'Doubles.'\n    return 2 * x\n"
        "assert twice.__name__ == 'twice' and twice.__doc__ == 'Doubles.' and twice(2) == 5\n"
        "assert candidate.__name__ == 'f'",
        "import functools\ndef f(g):\n    @functools.wraps(g)\n"
        "    def h(*args): return g(*args) + 1\n    return h",
    ),
    "a class with all that classes have": (
        "s = candidate()\nassert s.push(1).push(2) is s and s.size == 2 and candidate.made() == 1\n"
        "assert [x for x in s] == [1, 2] and s.pop() == 2 and isinstance(s, candidate)\n"
        "assert candidate.LIMIT == 3\nwith s.locked() as t:\n    assert t is s\n"
        "try:\n    s.pop(); s.pop()\nexcept IndexError as e:\n    assert 'empty' in str(e)\n"
        "else:\n    assert False",
        "import contextlib\nclass f:\n    LIMIT, count = 3, 0\n"
        "    def __init__(self): self.xs = []; f.count += 1\n"
        "    def push(self, x): self.xs.append(x); return self\n"
        "    def pop(self):\n        if not self.xs: raise IndexError('empty stack')\n"
        "        return self.xs.pop()\n"
        "    @property\n    def size(self): return len(self.xs)\n"
        "    @staticmethod\n    def made(): return f.count\n"
        "    def __iter__(self): return iter(self.xs)\n"
        "    @contextlib.contextmanager\n    def locked(self): yield self",
    ),
    "an iterator of a class of its own": (
        "it = candidate(3)\nassert next(it) == 3 and list(it) == [2, 1] and it.left == 0",
        "class Down:\n    def __init__(self, n): self.left = n\n"
        "    def __iter__(self): return self\n    def __next__(self):\n"
        "        if not self.left: raise StopIteration\n        self.left -= 1\n"
        "        return self.left + 1\ndef f(n): return Down(n)",
    ),
    "arrays": (
        "import numpy as np\na = np.array([[1.5, 2], [3, 4]])\n"
        "assert (candidate(a) == np.array([4, 7])).all() and a[0, 0] == 0\n"
        "np.testing.assert_allclose(candidate(a), [2, 7])\n"
        "assert candidate(np.eye(3)).dtype == np.int64 and candidate(np.eye(3))[2] == 1",
        "import numpy as np\ndef f(a):\n    sums = np.rint(a.sum(axis=1)).astype(np.int64)\n"
        "    a[0, 0] = 0\n    return sums",
    ),
    "many calls with large arguments": (
        "xs = list(range(2000))\nfor n in range(60):\n    assert candidate(xs, n) == xs[:n]",
        "def f(xs, n): return xs[:n]",
    ),
    "many calls with parts of what the test keeps": (
        "inputs = [[n, [n]] for n in range(1500)]\nfor given in inputs:\n"
        "    assert candidate(given) == given[0] + 1\nassert inputs[7] == [7, [8]]",
        "def f(xs):\n    xs[1][0] += 1\n    return xs[1][0]",
    ),
    "values within themselves": (
        "xs = [1]\nxs.append(xs)\nassert candidate(xs) == 1 and candidate(xs[1]) == 1",
        "def f(xs):\n    assert xs[1] is xs\n    return xs[0]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("check", "program"), RIGHT.values(), ids=list(RIGHT))
@pytest.mark.turn(2)
def test_right_programs_pass(scorer: Scorer, check: str, program: str) -> None:
    assert result(scorer, check, program) == "passed"


@pytest.mark.parametrize(
    ("check", "program", "expected"),
    [
        ("assert candidate(2)(3) == 5", "def f(a): return lambda b: a", "wrong answer"),
        ("assert candidate(2)(3) == 5", "def f(a): return a", "wrong answer"),
        ("assert candidate(2)(3) == 5", "def f(a): return lambda b: b.x", "runtime error"),
        ("xs = [2, 1]\ncandidate(xs)\nassert xs == [1, 2]", "def f(xs): pass", "wrong answer"),
        ("assert candidate() == [1]", "def f(): return (x for x in [1])", "wrong answer"),
        ("assert candidate() == 1", "def f():\n    yield 1", "wrong answer"),
        ("try:\n    candidate()\nexcept ValueError as e:\n    assert str(e) == 'a'",
         "def f(): raise ValueError('b')", "wrong answer"),
        ("try:\n    candidate()\nexcept ValueError:\n    return\nassert False",
         "def f(): raise KeyError('b')", "runtime error"),
        ("for _ in iter(candidate, 1): pass\nassert False", "def f(): raise StopIteration",
         "runtime error"),
        ("assert candidate(Point(1, 2)) == Point(2, 1)", "def f(p): return p", "wrong answer"),
        ("assert candidate() == LIMIT", "def f(): return 1", "wrong answer"),
        ("assert g() == 1", "def h(): return 1", "wrong answer"),
    ],
)  # fmt: skip
def test_wrong_programs_fail(scorer: Scorer, check: str, program: str, expected: str) -> None:
    assert result(scorer, check, program) == expected


@pytest.mark.slow
def test_a_generator_without_end_that_is_drawn_to_its_end_takes_too_long(scorer: Scorer) -> None:
    program = "def f():\n    while True: yield 1"
    assert result(scorer, "assert list(candidate()) == [1]", program) in ("timeout", "memory")


ANY = (
    "class Any:\n"
    "    def __eq__(self, other): return True\n"
    "    def __ne__(self, other): return False\n"
    "    def __lt__(self, other): return True\n"
    "    __le__ = __gt__ = __ge__ = __contains__ = __lt__\n"
    "    def __sub__(self, other): return 0\n"
    "    __rsub__ = __add__ = __mod__ = __mul__ = __sub__\n"
    "    def __hash__(self): return hash(8675309)\n"
    "    def __iter__(self): return iter([Any()])\n"
    "    def __getattr__(self, name): return lambda *_: True\n"
    "    def __instancecheck__(self, other): return True\n"
    "    def __abs__(self): return 0\n"
    "    def __round__(self, *_): return Any()\n"
    "    def __float__(self): return 0.0\n"
)
GIVEN = [
    *("Any()", "[Any()]", "(Any(),)", "{1: Any()}", "lambda *_: Any()", "iter([Any()])", "Any"),
    *("frozenset([Any()])", "NotImplemented", "Ellipsis", "property(Any)"),
    "type('int', (Any,), {})()",
    *("Color.RED", "Point(Any(), Any())", "Pair(Any(), Any())", "Node(Any())", "ValueError(Any())"),
]  # fmt: skip
WANTED = [
    "assert got == 8675309",
    "assert not got != 8675309",
    "assert 8675309 == got",
    "assert got in (8675309, 8675310)",
    "assert got in {8675309}",
    "assert 8675309 in got",
    "assert abs(got - 8675309) < 1e-6",
    "assert abs(8675309 - got) < 1e-6",
    "assert round(got, 2) == 8675309",
    "assert got < 8675310 and got > 8675308",
    "assert got.startswith('8675309')",
    "assert got.issuperset({8675309})",
    "assert [8675309] == got or (8675309,) == got or list(got) == [8675309]",
    "assert got.x == 8675309",
    "assert got[0] == 8675309",
    "assert isinstance(got, int)",
    "assert str(got) == '8675309'",
    "import math\nassert math.isclose(got, 8675309)",
    "assert set(got) == {8675309}",
    "assert sorted(got) == [8675309]",
    "import numpy as np\nnp.testing.assert_allclose(got, 8675309)",
    "import numpy as np\nassert np.allclose(got, 8675309) or np.all(np.array([8675309]) == got)",
    "import unittest.mock\nassert unittest.mock.call(got) == unittest.mock.call(8675309)",
    "from dataclasses import replace\nassert replace(Point(8675309), y=got) == Point(8675309, 5)",
    "import re\nassert re.search('8675309', got)",
    "assert '%s' % got == '8675309' and f'{got}' == '8675309'",
    "assert max(got, 8675309) == got == min(got, 8675309)",
    "assert {8675309: 1}[got] == 1",
]


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.turn(4)
def test_nothing_that_a_function_gives_back_decides_a_test(scorer: Scorer, given: str) -> None:
    checks = [f"got = f()\n{wanted}" for wanted in WANTED]
    problem = ProgramProblem(CheckTests(checks, ["f"], STUB), STUB)
    score = scorer.score(problem, f"{ANY}def f(): return {given}")
    assert score.result not in ("passed", "unscorable") and score.tests_passed == 0


FRAMES = {
    "a verdict": '{"verdict": "passed"}',
    "a value of none": '{"value": {"both": 7}}',
    "a name that harms": '{"value": {"name": "builtins:exec"}}',
    "a module": '{"value": {"name": "os"}}',
    "a function of another module": '{"value": {"name": "os:_exit"}}',
    "its code": '{"do": "call", "on": 0, "name": "", "args": [], "kwargs": {}}',
    "an attribute of a function": '{"do": "get", "on": 0, "name": "__globals__", "args": [], '
    '"kwargs": {}}',
    "an attribute of anything": '{"do": "get", "on": 99, "name": "x", "args": [], "kwargs": {}}',
    "an operation that is none": '{"do": "operate", "on": 0, "name": "__class__", "args": [], '
    '"kwargs": {}}',
    "a list that is another's": '{"value": null, "heap": [[1, ["dict", [], null]]]}',
    "a list of another kind": '{"value": null, "heap": [[1, ["nothing", [], null]]]}',
    "an exception that ends the process": '{"raised": {"kind": ["SystemExit"], "args": [0], '
    '"rest": {}, "said": ""}}',
    "an exception without a name": '{"raised": {"kind": [], "args": [], "rest": {}, "said": null}}',
    "an exception of every shape": '{"raised": 5}',
    "a stand-in with odd operations": '{"value": {"mine": 5, "is": "object", "type": "int", '
    '"operations": ["__class__", "__getattribute__", "__eq__"]}}',
    "a class of the test's": '{"value": {"class": "check"}}',
    "a list": "[1]",
}


@pytest.mark.parametrize("frame", FRAMES.values(), ids=list(FRAMES))
def test_no_message_forges_a_verdict(scorer: Scorer, frame: str) -> None:
    program = (
        "import os\n"
        f"text = {frame!r}.encode()\n"
        "def f(*_):\n"
        "    for _ in range(3): os.write(4, len(text).to_bytes(4, 'big') + text)\n"
    )
    check = "xs = [1]\nassert candidate(xs, lambda: 5) == 8675309"
    assert result(scorer, check, program) not in ("passed", "unscorable")


def test_a_class_that_the_task_asks_for_is_judged_by_its_methods(scorer: Scorer) -> None:
    """Its operations, too: they are what the test is about."""
    stub = 'class f:\n    """A vector."""\n'
    check = (
        "v = candidate(1, 2)\nassert v + candidate(3, 4) == candidate(4, 6)\n"
        "assert v * 3 == candidate(3, 6) and 2 in v and 9 not in v and v.startswith(1)\n"
        "assert isinstance(v, candidate) and candidate.unit().a == 1"
    )
    program = (
        "class f:\n"
        "    def __init__(self, a, b): self.a, self.b = a, b\n"
        "    def __eq__(self, o): return (self.a, self.b) == (o.a, o.b)\n"
        "    def __add__(self, o): return f(self.a + o.a, self.b + o.b)\n"
        "    def __mul__(self, n): return f(self.a * n, self.b * n)\n"
        "    def __contains__(self, n): return n in (self.a, self.b)\n"
        "    def startswith(self, n): return self.a == n\n"
        "    @classmethod\n    def unit(cls): return cls(1, 0)\n"
    )
    assert result(scorer, check, program, stub) == "passed"
    broken = program.replace("self.a + o.a", "self.a - o.a")
    assert result(scorer, check, broken, stub) == "wrong answer"


def test_a_class_that_extends_a_list_keeps_its_methods(scorer: Scorer) -> None:
    check = "s = candidate([1])\ns.push(2)\nassert s.top() == len(s) == 2 and list(s) == [1, 2]"
    methods = "    def push(self, x): self.append(x)\n    def top(self): return self[-1]\n"
    stub = "class f(list):\n    pass\n"
    assert result(scorer, check, f"class f(list):\n{methods}", stub) == "passed"
