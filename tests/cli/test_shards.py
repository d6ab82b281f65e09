"""A job in parts: how it would be cut, its shards, and their journals read as one."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command


def test_plan_shows_the_cut(sharegen: Command, job: list[object]) -> None:
    ran = sharegen("plan", *job[1:-2], "--shards", 3)
    assert ran.code == 0, ran.err
    header, *parts = [line.split() for line in ran.out.splitlines()[:4]]
    assert header[:3] == ["shard", "problems", "samples"]
    assert [part[:3] for part in parts] == [[f"{i}/3", "2", "6"] for i in (1, 2, 3)]
    assert "times the mean" in ran.out and "sharing lost" in ran.out
    whole = sharegen("plan", *job[1:-2])
    assert "shared by all" in whole.out and "times the mean" not in whole.out


def test_plan_with_more_shards_than_problems(sharegen: Command, job: list[object]) -> None:
    ran = sharegen("plan", *job[1:-2], "--shards", 8)
    assert ran.code == 0, ran.err
    assert "without a problem  2 parts" in ran.out


@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_a_cut_into_no_parts_is_refused(sharegen: Command, number: str) -> None:
    ran = sharegen("plan", "self-consistency", "--shards", number)
    assert ran.code == 2 and "--shards" in ran.err and ran.err.count("\n") == 1
