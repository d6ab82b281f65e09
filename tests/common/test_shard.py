from __future__ import annotations

import pytest

from sharegen.common.shard import Shard
from sharegen.errors import UsageError


def array(task: object, count: object, first: object, last: object) -> dict[str, str]:
    names = ("ID", "COUNT", "MIN", "MAX")
    values = map(str, (task, count, first, last))
    return {f"SLURM_ARRAY_TASK_{name}": v for name, v in zip(names, values, strict=True)}


def test_a_part_of_so_many() -> None:
    assert Shard.parse("2/8") == Shard(2, 8)
    assert str(Shard(2, 8)) == "2/8"
    assert Shard.parse("1/1") == Shard(1, 1)


@pytest.mark.parametrize(
    "text", ["5/4", "0/4", "x", "", "/", "1/", "/4", "-1/4", "1/0", "0/0", "1.5/4", "1/2/3", " 1/2",
             "1/2 ", "1/2\n", "²/4", "SLURM", "1/99999999999999999999"]
)  # fmt: skip
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("environment", "shard"),
    [(array(1, 4, 1, 4), (1, 4)), (array(4, 4, 1, 4), (4, 4)),
     (array(0, 4, 0, 3), (1, 4)), (array(3, 4, 0, 3), (4, 4)), (array(1, 1, 1, 1), (1, 1))],
)  # fmt: skip
def test_arrays_that_count_from_0_or_1(environment: dict[str, str], shard: tuple[int, int]) -> None:
    assert Shard.parse("slurm", environment) == Shard(*shard)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "SLURM_ARRAY_TASK_ID is not set"),
        ({"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_COUNT is not set"),
        (array(3, 2, 3, 4), "do not count from 0 or 1"),  # two of more, submitted again
        (array(1, 3, 1, 7), "do not count from 0 or 1"),
        (array(2, 4, 0, 6), "without gaps"),
        (array(9, 4, 1, 4), "do not count from 0 or 1"),
        (array("x", 4, 1, 4), "SLURM_ARRAY_TASK_ID is 'x'"),
        (array(1, "", 1, 4), "SLURM_ARRAY_TASK_COUNT is ''"),
    ],
)
def test_other_arrays_are_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Shard.parse("slurm", environment)
