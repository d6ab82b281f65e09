"""Shapes and workloads: what is refused."""

from __future__ import annotations

import pytest

from sharegen.bench.shapes import WORKLOADS, Workload, workload
from sharegen.errors import UsageError


def test_workloads() -> None:
    assert workload("gsm8k") is WORKLOADS["gsm8k"]
    assert workload("0,1,2,3,1") == Workload(0, 1, 2, 3, 1)
    assert workload("5,0,1,1,1").prompts(8) == [workload("5,9,1,1,1").prompts(8)[0][:5]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gsm9k", "neither one of gsm8k, "),
        ("5,5,1,1", "nor five whole numbers"),
        ("5,5,1,1,1,1", "nor five whole numbers"),
        ("-1,5,1,1,1", "PREFIX is -1: it must be at least 0"),
        ("5,-1,1,1,1", "PROBLEM is -1: it must be at least 0"),
        ("5,5,0,1,1", "PROBLEMS is 0: it must be at least 1"),
        ("5,5,1,0,1", "SAMPLES is 0: it must be at least 1"),
        ("5,5,1,1,0", "OUTPUT is 0: it must be at least 1"),
        ("0,0,1,1,4", "PREFIX and PROBLEM are 0"),
    ],
)
def test_refuses_a_workload(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        workload(text)
    assert repr(text) in str(refused.value) and why in str(refused.value)
