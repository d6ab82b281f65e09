"""A crowd of processes beside a neighbour, each on a core of its own.

Nothing else may run beside it: whatever does would leave the crowd's core for the neighbour's.
"""

from __future__ import annotations

import pytest

from sharegen.common.cores import available_cores
from sharegen.common.program_tests import ProgramProblem, ScriptTests
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.workers import Task, score_all
from tests.results import sandboxes


@pytest.fixture(scope="module")
def isolation() -> Isolation:
    return sandboxes.isolation()


CROWD = (
    "import os, time\n"
    "for _ in range(28):\n"
    "    if os.fork() == 0:\n        while True: pass\n"
    "time.sleep(60)"
)
ALONE = (
    "import time\n"
    "started, work = time.monotonic(), time.process_time()\n"
    "while time.process_time() - work < 3: pass\n"
    "print(time.monotonic() - started < 1.1 * 3)"
)


@pytest.mark.slow
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_a_crowd_of_processes_takes_no_time_from_a_neighbour(isolation: Isolation) -> None:
    """The same program beside nobody tells whether this machine is quiet enough to say so."""
    timed = ProgramProblem(ScriptTests([""], ["True"]))
    limits = Limits(cpu_seconds=9, wall_seconds=12)
    quiet = 0
    for _ in range(6):
        tasks = [Task("crowd", timed, [(0, CROWD)]), Task("alone", timed, [(0, ALONE)])]
        scores = dict(score_all(iter(tasks), isolation, limits, 2))
        assert scores["crowd", 0].result == "timeout"
        if scores["alone", 0].passed:
            return
        ((_, score),) = score_all(iter(tasks[1:]), isolation, limits, 1)
        quiet += score.passed
    if quiet < 4:
        pytest.skip("this machine is too busy to tell")
    pytest.fail("it took more than a tenth longer beside the crowd, time and again")
