"""Shards of a job draw what the whole job draws: tokens, and in float32 the bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.common.shard import Shard
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.errors import NothingToDo, UsageError
from sharegen.job.dry_run import plan_cut, plan_job
from sharegen.job.run_job import run_job
from sharegen.job.share import share_of
from sharegen.workload.clock import Clock
from sharegen.workload.problem import load_workload
from sharegen.workload.prompt import tokenise
from tests.job.parts import configure, records
from tests.tiny import tiny_tokenizer


def test_the_data_has_what_makes_it_hard(folder: Path) -> None:
    """Branches that a cut parts, so that a part alone would split elsewhere."""
    workload = load_workload(configure(folder))
    prompts = tokenise([problem.prompt for problem in workload.problems], tiny_tokenizer())
    tree = PrefixTree.build(prompts, 16)
    levels = [len(node.path()) for node in tree.nodes() if node.requests]
    assert max(levels) >= 3 and len(tree.root_nodes) == 1
    share = share_of(configure(folder), workload, Shard(1, 3), Clock.now())
    alone = PrefixTree.build(share.prompts, 16)
    own = PrefixTree.build(share.prompts, 16, splits=share.splits)
    assert [node.splits() for node in alone.nodes()] != [node.splits() for node in own.nodes()]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.turn(3)
def test_shards_draw_the_bits_of_the_whole_job(
    folder: Path, tmp_path: Path, whole: dict[tuple[str, int | None], dict[str, Any]], count: int
) -> None:
    drawn: dict[tuple[str, int | None], dict[str, Any]] = {}
    for index in range(1, count + 1):
        outcome = run_job(configure(folder), tmp_path / "a.jsonl", shard=Shard(index, count))
        assert outcome.path == tmp_path / f"a.shard-{index}-of-{count}.jsonl"
        part = records(outcome.path)
        assert outcome.drawn == sum(sample is not None for _, sample in part)
        assert not drawn.keys() & part.keys()
        drawn |= part
    assert drawn == whole  # cumulative_logprob, to the bit, with tokens and text
    assert len(drawn) == 11 * 3 + 2


def test_a_shard_continues(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    run_job(configure(folder, samples=2), path, shard=Shard(1, 3))
    more = run_job(configure(folder), path, shard=Shard(1, 3))
    again = run_job(configure(folder), path, shard=Shard(1, 3))
    assert more.drawn > 0 == again.drawn
    extent = json.loads((tmp_path / ".sharegen" / "a.shard-1-of-3.run.json").read_text())["extent"]
    assert extent["shard"].items() >= {"index": 1, "count": 3}.items()


def test_a_shard_without_problems_has_nothing_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NothingToDo, match=r"--shard 20/20: .* 12 problems") as told:
        run_job(configure(folder), tmp_path / "a.jsonl", shard=Shard(20, 20))
    assert told.value.exit_code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.turn(4)
def test_a_plan_of_a_shard_is_what_it_computes(folder: Path, tmp_path: Path) -> None:
    for index in (1, 2):
        shard = Shard(index, 2)
        outcome = run_job(configure(folder), tmp_path / "a.jsonl", shard=shard)
        plan = plan_job(configure(folder), shard)
        assert outcome.run.stats["prompt_tokens_computed"] == outcome.run.stats["plan"]["computed"]
        if index == 2:  # the first has a row that is longer than the context
            assert plan == outcome.plan
    cut = plan_cut(configure(folder), 2).cut
    assert cut.parts[1].prompt_tokens == plan.computed
    assert len(cut.parts[1].problems) == plan.problems


@pytest.mark.parametrize("shard", [None, Shard(1, 4), Shard(2, 3)])
def test_the_journal_of_another_shard_is_not_continued(
    folder: Path, tmp_path: Path, shard: Shard | None
) -> None:
    with pytest.raises(UsageError, match=r"is the journal of shard 1/3: give --shard 1/3, or "):
        run_job(configure(folder), tmp_path / "a.shard-1-of-3.jsonl", shard=shard)
