"""The program in a chat's answer, and in what a base model wrote."""

from __future__ import annotations

import contextlib
import io
import time

import pytest

from sharegen.common.program_tests import CallTests, CheckTests, ProgramProblem, ScriptTests
from sharegen.results.scoring.completion import completion_of
from tests.results.chat_programs import FUNCTIONS, SCRIPTS, F, fenced

CHECK = CheckTests(["assert inc(1) == 2"], ["inc"], "")
STUBS = {
    "none": "",
    "a docstring": 'from typing import List\n\ndef inc(x: int) -> int:\n    """Add one."""\n',
    "no body": "def inc(x):\n",
}
SCRIPT = ProgramProblem(ScriptTests(["1 2\n"], ["3\n"]))


def is_right(program: str) -> bool:
    names = {"__name__": "program"}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(program, "program", "exec"), names)
    return names["inc"](1) == 2  # type: ignore[operator]


@pytest.mark.parametrize("answer", FUNCTIONS.values(), ids=list(FUNCTIONS))
def test_the_function_in_an_answer_is_found(answer: str) -> None:
    """In a file that does not say whether it is a chat's, too."""
    for stub in STUBS.values():
        for is_chat in (True, False):
            problem = ProgramProblem(CHECK, stub=stub)
            assert is_right(problem.program(completion_of(answer, is_chat, problem)))


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "base"])
@pytest.mark.parametrize("answer", SCRIPTS.values(), ids=list(SCRIPTS))
def test_the_script_in_an_answer_is_found(
    answer: str, is_chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = completion_of(answer, is_chat, SCRIPT)
    given, written = io.StringIO("1 2\n"), io.StringIO()
    monkeypatch.setattr("sys.stdin", given)
    monkeypatch.setattr("builtins.open", lambda *_: given)
    monkeypatch.setattr("sys.setrecursionlimit", lambda *_: None)
    program = program.replace("3000", "30")
    with contextlib.redirect_stdout(written):
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    assert written.getvalue() == "3\n"


@pytest.mark.parametrize(
    "answer",
    [
        "```python\nclass Solution:\n    def inc(self, x):\n        return x + 1\n```\n"
        "```python\nprint(Solution().inc(1))\n```",
        "```python\nclass Solution:\n    def inc(self, x):\n        return x\n```\nFixed:\n"
        "```python\nclass Solution:\n    def inc(self, x):\n        return x + 1\n```\n",
    ],
)
def test_a_method_is_found_as_a_function_is(answer: str) -> None:
    program = completion_of(answer, True, ProgramProblem(CallTests("inc", [[1]], [2])))
    names: dict = {}
    exec(program, names)
    assert names["Solution"]().inc(1) == 2 and "print" not in program


@pytest.mark.parametrize(
    "body",
    [
        "```python\n    return x + 1\n```",
        "```python\nreturn x + 1\n```",
        "```python\nprint(0)\n```\nor better\n```python\n    y = x\n    return y + 1\n```",
    ],
)
def test_a_body_continues_the_stub(body: str) -> None:
    for stub in ("def inc(x):\n", 'def inc(x):\n    """Add."""\n'):
        problem = ProgramProblem(CHECK, stub=stub)
        assert is_right(stub + completion_of(body, True, problem))


BASE = "    return x + 1\n"


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        BASE + "```\n",
        BASE + "```\n\nExample:\n```python\nprint(inc(1))\n```\n",
        BASE + "~~~",
        BASE + "<|endoftext|>",
        BASE + "<|im_end|>\n",
        BASE.rstrip() + "<|endoftext|>import os\n",
        BASE + "<|im_end|>\n<|im_start|>user\nThanks.",
        BASE + "</s>",
    ],
)
def test_what_ends_a_base_models_program_is_no_part_of_it(text: str) -> None:
    problem = ProgramProblem(CHECK, stub="def inc(x):\n")
    assert completion_of(text, False, problem).rstrip() == BASE.rstrip()


def test_a_base_models_program_that_is_python_is_left_alone() -> None:
    problem = ProgramProblem(CHECK, stub="def inc(x):\n")
    for text in (
        "    return '<|endoftext|>'\n",
        '    """\n```\n"""\n',
        "    return '```'  # ```\n",
    ):
        assert completion_of(text, False, problem) == text
    for text in ("    return ((x\n", "I cannot.", "", "    return x +"):
        assert completion_of(text, False, problem) == text


def test_an_answer_without_a_program_is_none() -> None:
    problem = ProgramProblem(CHECK)
    for text in ("I cannot.", "", "<think>I wonder whether", fenced("3\n", "")):
        program = completion_of(text, True, problem)
        assert "inc" not in program


def test_an_end_token_that_a_program_writes_ends_nothing() -> None:
    program = "def inc(x):\n    s = '<|im_end|>' + \"</s>\"\n    return x + 1\n"
    assert completion_of(fenced(program), True, ProgramProblem(CHECK)) == program


@pytest.mark.parametrize(
    "text",
    [
        "```\n" * 100_000,
        "```python\n" * 50_000,
        f"{fenced(F)}\n" * 10_000,
        '```python\n"""\n' * 10_000,
        "``` " * 250_000,
        "```python\ndef inc(x:\n" * 10_000,
        "<think>" * 50_000,
        " " * 10**6,
        "\n" * 10**6,
        "def inc(x\n" * 20_000,
        "import a\n" * 20_000,
        "(" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "base"])
@pytest.mark.turn(6)
def test_a_long_answer_takes_a_moment(text: str, is_chat: bool) -> None:
    started = time.process_time()
    completion_of(text + fenced(F), is_chat, ProgramProblem(CHECK))
    assert time.process_time() - started < 6
