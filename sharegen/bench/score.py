"""How many trivial programs a second are scored on every core, isolation included."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter

from sharegen.common.cores import available_cores
from sharegen.common.program_tests import CallTests, CheckTests, ProgramProblem, ScriptTests
from sharegen.errors import SharegenError
from sharegen.results.sandbox.host import KINDS, SandboxError, fault_of
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.workers import Task, score_all

PROBLEMS = {
    "script": (
        ProgramProblem(ScriptTests(["3 4\n"], ["7\n"])),
        "print(sum(map(int, input().split())))",
    ),
    "call": (ProgramProblem(CallTests("add", [[3, 4]], [7])), "def add(a, b): return a + b"),
    "check": (
        ProgramProblem(CheckTests(["assert add(3, 4) == 7"], ["add"], "")),
        "def add(a, b): return a + b",
    ),
}
"""A trivial problem of each kind of tests, with a program that passes."""


_WARMING = 8

_MEANING = {
    "script": "one test by standard input",
    "call": "one call of a function",
    "check": "one assertion, run in a sandbox of its own",
}


def bench_score(programs: int = 400, workers: int | None = None) -> list[str]:
    """Score `programs` programs of each kind in every isolation that works here.

    Returns lines to read, and one of JSON. Raises SandboxError where no isolation works.
    """
    workers = workers or available_cores()
    cores = min(workers, available_cores())
    lines = [f"{programs:,} trivial programs of each kind, {workers} processes on {cores} cores"]
    found: dict[str, dict[str, float]] = {}
    for isolation in KINDS:
        fault = fault_of(isolation)
        if fault is not None:
            lines.append(f"not measured: {fault}")
            continue
        found[isolation] = {}
        for kind, meaning in _MEANING.items():
            pace = _programs_a_second(kind, isolation, programs, workers) / cores
            found[isolation][kind] = round(pace, 1)
            lines.append(f"{isolation}, {kind}: {pace:,.0f} a second per core ({meaning})")
    if not found:
        raise SandboxError("; ".join(lines[1:]))
    result = {
        "bench": "score",
        "programs": programs,
        "workers": workers,
        "cores": cores,
        "python": platform.python_version(),
        "programs_per_second_per_core": found,
    }
    return [*lines, json.dumps(result)]


def _programs_a_second(kind: str, isolation: Isolation, programs: int, workers: int) -> float:
    """The clock starts after a few verdicts for each process, when all are warm."""
    problem, program = PROBLEMS[kind]
    warming = _WARMING * workers
    completions = [(index, program) for index in range(programs + warming)]
    scores = score_all(iter([Task(kind, problem, completions)]), isolation, Limits(), workers)
    results = Counter(next(scores)[1].result for _ in range(warming))
    started = time.perf_counter()
    results.update(score.result for _, score in scores)
    seconds = time.perf_counter() - started
    if results != {"passed": programs + warming}:
        raise SharegenError(f"{isolation}: trivial programs did not all pass: {dict(results)}")
    return programs / seconds
