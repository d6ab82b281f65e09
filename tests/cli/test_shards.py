"""A job in parts: how it would be cut, its shards, and their journals read as one."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.parametrize("shard", ["5/4", "0/4", "x", "slurm"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_what_is_no_shard_is_refused(sharegen: Command, command: str, shard: str) -> None:
    ran = sharegen(command, "self-consistency", "--shard", shard)
    assert ran.code == 2 and f"--shard {shard}" in ran.err and ran.err.count("\n") == 1


def test_plan_shows_all_shards_or_one(sharegen: Command, job: list[object]) -> None:
    ran = sharegen("plan", *job[1:-2], "--shards", 3, "--shard", "1/3")
    assert ran.code == 2 and "leave out one" in ran.err
    ran = sharegen("plan", *job[1:-2], "--shard", "1/3")
    assert ran.code == 0 and "2 problems, 6 samples" in ran.out


@pytest.mark.turn(4)
def test_tasks_of_a_job_array(
    sharegen: Command, job: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("COUNT", 3), ("MIN", 0), ("MAX", 2)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    for task in range(3):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        ran = sharegen(*job, "--shard", "slurm", "--quiet")
        assert (ran.code, ran.out) == (0, f"out.shard-{task + 1}-of-3.jsonl\n"), ran.err
    assert sharegen(*job, "-o", "whole.jsonl", "--quiet").code == 0
    shards = "".join(path.read_text() for path in tmp_path.glob("out.*.jsonl"))
    whole = (tmp_path / "whole.jsonl").read_text()
    assert sorted(shards.splitlines()) == sorted(whole.splitlines())


def test_more_shards_than_problems(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    ran = sharegen(*job, "--shard", "7/7")
    assert ran.code == 0, ran.err
    assert "sharegen: --shard 7/7: there is nothing to do: the job has 6 problems" in ran.err


ANSWERS = ["--set", "answer.patterns=['(\\w)']"]  # a model of random weights has no better ones


@pytest.mark.slow
def test_shards_are_read_as_one_job(sharegen: Command, job: list[object], tmp_path: Path) -> None:
    for shard in ("1/2", "2/2"):
        ran = sharegen(*job, *ANSWERS, "--shard", shard)
        assert ran.code == 0, ran.err
        assert "9, 72 tokens" in ran.out and "problems              3" in ran.out
    assert sharegen(*job, *ANSWERS, "-o", "whole.jsonl", "--quiet").code == 0
    voted, as_whole = sharegen("vote", "out.jsonl"), sharegen("vote", "whole.jsonl")
    assert voted.code == as_whole.code == 0
    assert voted.out == as_whole.out
    assert "out.jsonl: 6 problems, 18 samples" in voted.err
    assert sharegen("vote", "out.shard-1-of-2.jsonl", "out.shard-2-of-2.jsonl").out == voted.out
    part = sharegen("vote", "out.shard-1-of-2.jsonl")
    assert "out.jsonl: without shard 2 of 2" in part.err and "9 samples" in part.err
    shown = [sharegen("show", f"{name}.jsonl", "--problem", 4).out for name in ("out", "whole")]
    assert shown[0] == shown[1] and "sample 2" in shown[0]
    scored = [sharegen("score", f"{name}.jsonl").out for name in ("out", "whole")]
    assert scored[0].splitlines()[1:] == scored[1].splitlines()[1:]
    drawn = [sharegen("report", f"{name}.jsonl").out for name in ("out", "whole")]
    assert drawn[0].replace("out", "whole") == drawn[1]
    assert sharegen("report", "out.jsonl", "--html", "out.html").code == 0
    for format in ("human-eval", "sharegen"):
        for name in ("out", "whole"):
            ran = sharegen("convert", f"{name}.jsonl", "--format", format, "-o", f"{name}.{format}")
            assert ran.code == 0, ran.err
        assert Path(f"out.{format}").read_text() == Path(f"whole.{format}").read_text()
    ran = sharegen(*job, *ANSWERS)
    assert ran.code == 0 and "Everything that was asked is on record" in ran.err
    assert "18, " in ran.out and not (tmp_path / "out.jsonl").exists()


def test_seeds_vote_together_where_that_is_asked(sharegen: Command, job: list[object]) -> None:
    for seed in (0, 1):
        assert sharegen(*job, *ANSWERS, "--seed", seed, "-o", f"{seed}.jsonl", "--quiet").code == 0
    apart = sharegen("vote", "0.jsonl", "1.jsonl")
    assert apart.out.startswith("file\t") and "1.jsonl: 6 problems, 18 samples" in apart.err
    for command in (["vote"], ["score"], ["report"]):
        ran = sharegen(*command, "0.jsonl", "1.jsonl", "--pool")
        assert ran.code == 0, ran.err
        assert "0.jsonl, 1.jsonl: samples of seeds 0 and 1 are pooled, in this order" in ran.err
    assert "6 problems, 36 samples" in sharegen("vote", "0.jsonl", "1.jsonl", "--pool").err
