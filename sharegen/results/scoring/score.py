"""Judging one program by its problem's tests. It runs in the sandbox; the verdict is reached here.

The process that runs the program gets inputs and nothing else, and answers with bytes or literals.
Assertions that are code (HumanEval, MBPP) run in a second sandbox with a warmed parent of its own;
this process carries calls from there to the program and values back, and the verdict comes from
the assertions alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Any, Literal

from sharegen.common.program_tests import (
    CallTests,
    CheckTests,
    NoTests,
    ProgramProblem,
    ScriptTests,
)
from sharegen.results.sandbox import literal
from sharegen.results.sandbox.host import ProgramSession, Sandbox, SandboxReply
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.process import Status
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.compare import same_output, same_value
from sharegen.results.scoring.compiling import compile_error

Result = Literal[
    "passed",
    "wrong answer",
    "runtime error",
    "timeout",
    "memory",
    "compile error",
    "unscorable",
]

RULES = 2
"""Counts the changes of how programs are taken from texts and judged."""

_FAILURES: dict[Status, Result] = {
    "error": "runtime error",
    "compile": "compile error",
    "memory": "memory",
    "timeout": "timeout",
    "output": "wrong answer",
}
_HOPELESS = ("compile error", "timeout", "memory")
"""Results after which the other tests are not run: they would only take as long again."""

_CHECK_SECONDS = 10.0  # of the assertions' own process, besides what the program may take


@dataclass(frozen=True)
class Score:
    """The verdict on one program.

    result: "passed", or how the first test that did not pass failed.
    tests_passed: of those that were run; seconds: wall time, sandbox included. tests_total: that
    the problem has; message: what the compiler said, where it refused the program.
    """

    result: Result
    tests_passed: int
    seconds: float
    tests_total: int | None = None
    message: str | None = None

    @property
    def passed(self) -> bool:
        return self.result == "passed"


class Scorer:
    """Judges programs one after another, each in a sandbox of its own.

    Use as a context manager. Raises SandboxError where the isolation cannot be had.
    """

    def __init__(self, isolation: Isolation, limits: Limits | None = None):
        self.limits = limits or Limits()
        self._stack = contextlib.ExitStack()
        self._candidates = self._stack.enter_context(Sandbox(isolation, self.limits))
        self._check_stack = self._stack.enter_context(contextlib.ExitStack())
        self._checker: ProgramSession | None = None

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def score(self, problem: ProgramProblem, completion: str) -> Score:
        """Run a completion's program against all tests of its problem."""
        started = time.monotonic()
        tests = problem.tests
        results: list[Result] = []
        if not isinstance(tests, NoTests):
            with self._candidates.program(problem.program(completion), problem.prelude) as program:
                for index in range(_count(tests)):
                    results.append(self._run(program, tests, index))
                    if results[-1] in _HOPELESS:
                        break
        failure = next((result for result in results if result != "passed"), None)
        verdict: Result = failure or ("passed" if results else "unscorable")
        message = None
        if verdict == "compile error":
            message = compile_error(problem.program(completion))
        return Score(
            verdict,
            results.count("passed"),
            time.monotonic() - started,
            0 if isinstance(tests, NoTests) else _count(tests),
            message,
        )

    def _run(
        self, program: ProgramSession, tests: ScriptTests | CallTests | CheckTests, index: int
    ) -> Result:
        if isinstance(tests, ScriptTests):
            answer = program.run_script(tests.inputs[index])
            if answer.status != "ok":
                return _FAILURES[answer.status]
            written = answer.output.decode(errors="replace")
            return "passed" if same_output(written, tests.outputs[index]) else "wrong answer"
        if isinstance(tests, CallTests):
            try:
                arguments = literal.encode(list(tests.arguments[index]))
            except literal.NotLiteral:  # more items than any test has
                return "unscorable"
            answer = program.call(tests.function, arguments)
            return _judge_call(answer, tests.results[index], tests.is_exact)
        return self._check(program, tests, tests.checks[index])

    def _check(self, program: ProgramSession, tests: CheckTests, check: str) -> Result:
        """Run assertions in their own sandbox, forwarding the calls that they make."""
        checker = self._open_checker()
        checker.open_session()
        program.open_session()
        try:
            job = {"check": check, "setup": tests.setup, "names": list(tests.functions)}
            return _converse(program, checker, job)
        finally:
            program.close_session()
            checker.close_session()

    def _open_checker(self) -> ProgramSession:
        """The sandbox in which assertions run: one for all, with a fresh process for each check.

        It has a warmed parent of its own, so that no program is forked from one that knew a test.
        """
        if self._checker is None or self._checker.is_lost:
            self._check_stack.close()
            limits = dataclasses.replace(
                self.limits,
                cpu_seconds=self.limits.cpu_seconds + _CHECK_SECONDS,
                wall_seconds=self.limits.wall_seconds + _CHECK_SECONDS,
            )
            sandbox = self._check_stack.enter_context(Sandbox(self._candidates.isolation, limits))
            self._checker = self._check_stack.enter_context(sandbox.program("", checks=True))
        return self._checker


def _count(tests: ScriptTests | CallTests | CheckTests) -> int:
    if isinstance(tests, ScriptTests):
        return len(tests.inputs)
    return len(tests.arguments if isinstance(tests, CallTests) else tests.checks)


def _judge_call(answer: SandboxReply, expected: Any, is_exact: bool) -> Result:
    if answer.status != "ok":
        return _FAILURES[answer.status]
    reply = _reply(answer.output)
    if "value" in reply:
        return "passed" if same_value(reply["value"], expected, is_exact) else "wrong answer"
    return _raised(reply["raised"])


def _converse(program: ProgramSession, checker: ProgramSession, job: dict[str, Any]) -> Result:
    """Carry calls to the program and values to the assertions until these have a verdict.

    "unscorable" only where the program had no say yet: afterwards it might be its own doing.
    """
    message = job
    raised: str | None = None
    has_answered = has_been_called = False
    while True:
        answer = checker.ask(message)
        said = _object(answer.output) if answer.status == "ok" else {}
        if "call" not in said:
            break
        reply = program.ask(said["call"])
        if reply.status != "ok":
            return _FAILURES[reply.status]
        message = _object(reply.output) or {"raised": {"kind": [], "args": [], "rest": {}}}
        raised = _raised_in(message) or raised
        has_answered = True
        has_been_called = has_been_called or not _only_names(said["call"])
    verdict = said.get("verdict")
    if verdict == "passed":
        return "passed"
    if not has_answered or (verdict == "broken" and not has_been_called):
        return "unscorable"
    return _raised(raised) if verdict == "raised" and raised else "wrong answer"


def _only_names(call: dict[str, Any]) -> bool:
    """Whether a test asks but for the functions that it tests."""
    return call.get("do") == "names" and not call.get("name")


def _raised_in(message: dict[str, Any]) -> str | None:
    """The name of the exception that a program's message tells of, if it does."""
    described = message.get("raised")
    if described is None:
        return None
    kind = described.get("kind") if isinstance(described, dict) else None
    name = kind[0] if isinstance(kind, list) and kind else None
    return name if isinstance(name, str) else "junk"


def _reply(output: bytes) -> dict[str, Any]:
    """What a program said to a call: {"value": encoded} or {"raised": name}, whatever it wrote."""
    said = _object(output)
    if said.keys() == {"value"}:
        return said
    name = said.get("raised")
    return {"raised": name if isinstance(name, str) else "junk"}


def _raised(name: str) -> Result:
    return "wrong answer" if name == literal.NotLiteral.__name__ else "runtime error"


def _object(output: bytes) -> dict[str, Any]:
    try:
        said = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
