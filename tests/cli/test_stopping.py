"""`vote` and `score` on journals that a rule stopped; rules that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.results.stopped_journals import journal


def test_every_command_says_what_it_took(sharegen: Command, tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", "confident=0.8")
    ran = sharegen("vote", path)
    assert ran.code == 0 and "stopped by confident=0.8, approximate: " in ran.err
    header, first, *_ = ran.out.splitlines()
    assert header.endswith("gold\trule\tstopped")
    assert first.endswith("7\tconfident=0.8, approximate\t2")
    objects = [json.loads(line) for line in sharegen("vote", path, "-o", "-").out.splitlines()]
    assert [o["stopped"] for o in objects] == [2, 2, 6, None]
    assert objects[0]["rule"] == "confident=0.8" and objects[0]["exact"] is False


@pytest.mark.slow
def test_a_run_says_what_was_saved_and_scores_what_is_fixed(
    sharegen: Command, job: list[object]
) -> None:
    ran = sharegen(*job, "-n", 6, "--stop-when", "confident=0.8")
    assert ran.code == 0 and "stopped by confident=0.8, approximate" in " ".join(ran.out.split())
    assert "saved" in ran.out and "the vote over all" in ran.out
    ran = sharegen("score", "out.jsonl")
    assert "estimated from the first 2 samples, which every problem has" in ran.err
    assert "pass@1" in ran.out and "pass@5" not in ran.out
    ran = sharegen("convert", "out.jsonl", "--format", "human-eval")
    assert ran.code == 0 and "pass@k by the usual formula is biased" in ran.err
    plan = [a for a in job[1:] if a not in ("-o", "out.jsonl")]
    ran = sharegen("plan", *plan, "-n", 6, "--stop-when", "confident=0.8")
    said = " ".join(ran.out.split())
    assert "12 to 36 completions expected" in said and "prompts stay in the KV cache" in said


def test_a_rule_that_is_wrong_is_one_line(sharegen: Command, job: list[object]) -> None:
    for rule, line in (
        ("never", "--stop-when is 'never': not a rule: decided, confident"),
        ("right=9", "--stop-when right=9: only 2 samples are drawn of a problem"),
    ):
        ran = sharegen(*job, "-n", 2, "--stop-when", rule)
        assert ran.code == 2 and line in ran.err and len(ran.err.splitlines()) == 1
    ran = sharegen(*job, "-n", 2, "--stop-when", "decided", "--execute")
    assert ran.code == 2 and "--execute runs programs for --stop-when right=K" in ran.err
