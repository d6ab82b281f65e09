"""How many trivial programs a second are scored on every core, isolation included."""

from __future__ import annotations

import json
import time
from collections import Counter

from sharegen.program_tests import CallTests, CheckTests, ProgramProblem, ScriptTests
from sharegen.results.sandbox.host import choose_isolation
from sharegen.results.sandbox.limits import Limits
from sharegen.results.workers import Task, available_cores, score_all

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


def bench_score(programs: int = 400, workers: int | None = None) -> list[str]:
    """Score `programs` programs of each kind; returns a line for each, and one of JSON.

    The clock starts at the first verdict, when all is warm, and stops at the last.
    """
    workers = workers or available_cores()
    isolation = choose_isolation()
    lines = []
    pace: dict[str, float] = {}
    for kind, (problem, program) in PROBLEMS.items():
        completions = [(index, program) for index in range(programs + workers)]
        scores = score_all(iter([Task(kind, problem, completions)]), isolation, Limits(), workers)
        results = Counter(next(scores)[1].result for _ in range(workers))
        started = time.perf_counter()
        results.update(score.result for _, score in scores)
        pace[kind] = programs / (time.perf_counter() - started) / workers
        assert results == {"passed": programs + workers}, results
        lines.append(f"{kind}: {pace[kind]:,.0f} programs a second per core, {workers} cores")
    found = {
        "bench": "score",
        "isolation": isolation,
        "workers": workers,
        "programs_per_second_per_core": {kind: round(value, 1) for kind, value in pace.items()},
    }
    return [*lines, json.dumps(found)]
