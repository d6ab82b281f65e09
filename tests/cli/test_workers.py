"""`--workers` on the command line: what it takes, and what `plan` says of it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize("workers", ["0", "-1", "x", "1.5", "", "٣", "auto "])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_is_no_number_of_workers(sharegen: Command, command: str, workers: str) -> None:
    ran = sharegen(command, "self-consistency", "--workers", workers)
    assert ran.code == 2 and "--workers" in ran.err and ran.err.count("\n") == 1


def test_more_workers_than_cores(sharegen: Command, job: list[object]) -> None:
    ran = sharegen(*job, "-n", "999", "--workers", "9999")
    assert ran.code == 2 and ran.err.splitlines()[-1].startswith("sharegen: error: ")
    assert "workers are too many: this machine has" in ran.err


def test_more_workers_than_samples(sharegen: Command, job: list[object]) -> None:
    ran = sharegen(*job, "-n", "1", "--limit", "1", "--workers", "64")
    assert ran.code == 0, ran.err
    assert "sharegen: --workers 64: the job has 1 samples, and takes as many workers" in ran.err


def test_plan_tells_the_price_of_workers(sharegen: Command, job: list[object]) -> None:
    two, one = (sharegen("plan", *job[1:-2], "--workers", count) for count in (2, 1))
    assert two.code == one.code == 0, two.err
    [line] = [line for line in two.out.splitlines() if line.startswith("2 workers")]
    assert "computed again by other workers" in line and "in each of 2 workers" in two.out
    assert "computed again" not in one.out
