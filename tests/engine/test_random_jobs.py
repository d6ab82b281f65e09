"""The random jobs are as odd as they claim: each kind of forest and machine is really drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from tests.engine.jobs import CONTEXT, loaded, run
from tests.engine.random_jobs import RandomJob, jobs, least_blocks


def prompts(job: RandomJob) -> list[list[int]]:
    return [list(request.prompt_token_ids) for request in job.requests]


def has_prefixes(job: RandomJob) -> bool:
    return any(len(a) < len(b) and b[: len(a)] == a for a, b in permutations(prompts(job), 2))


def has_branches(job: RandomJob) -> bool:
    """Two prompts that share more than a block and then part."""
    for a, b in permutations(prompts(job), 2):
        same = next((i for i, pair in enumerate(zip(a, b, strict=False)) if len(set(pair)) > 1), 0)
        if same > job.block_size:
            return True
    return False


def ends_early(job: RandomJob) -> bool:
    """A stop token in many: samples end at random times."""
    return any(len(request.params.stop_token_ids) >= 6 for request in job.requests)


KINDS: dict[str, Callable[[RandomJob], bool]] = {
    "equal prompts": lambda job: any(a == b for a, b in permutations(prompts(job), 2)),
    "prefixes of one another": has_prefixes,
    "branches": has_branches,
    "one token": lambda job: any(len(prompt) == 1 for prompt in prompts(job)),
    "the context limit": lambda job: any(len(prompt) == CONTEXT - 1 for prompt in prompts(job)),
    "no common root": lambda job: len({prompt[0] for prompt in prompts(job)}) > 1,
    "random ends": ends_early,
    "the smallest pool": lambda job: job.blocks == least_blocks(job.requests, job.block_size),
    "one row": lambda job: job.max_sequences == 1 and sum(len(r.samples) for r in job.requests) > 3,
    "one step behind": lambda job: job.lag == 1,
    "no room for growth": lambda job: job.optimistic,
    "host memory": lambda job: job.optimistic and job.host_blocks > 0,
}


@pytest.mark.turn(3)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn(kind: str) -> None:
    drawn = settings(
        max_examples=500, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    find(jobs(), KINDS[kind], settings=drawn)


@pytest.mark.slow
def test_optimistic_jobs_preempt() -> None:
    """Blocks run out where admission leaves no room, and the job ends all the same."""

    def preempts(job: RandomJob) -> bool:
        if not job.optimistic or job.blocks > 60:
            return False
        return run(job.engine(loaded("llama")), job.requests).stats.preemptions > 0

    drawn = settings(
        max_examples=300, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    find(jobs(), preempts, settings=drawn)
