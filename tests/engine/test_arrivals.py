"""Requests that come one by one while others run: they share what stands, and nobody notices."""

from __future__ import annotations

import random

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from tests.engine.jobs import forest, loaded, make_engine, random_tokens, requests_of, run

SAMPLED = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, seed=3)
PROMPT = random_tokens(50, random.Random(1))


def finish(engine: Engine) -> list[Completion]:
    done = []
    while engine.has_work:
        done += engine.step()
    return done


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 4, None])
def test_an_equal_prompt_computes_less_than_a_block(lag: int, steps: int | None) -> None:
    """Whether the first one waits, is computed, runs, or has finished (None)."""
    engine = make_engine(loaded("llama"), block_size=4)
    engine._lag = lag
    engine.begin(arriving=True)
    tokens = []
    for key in range(3):
        engine.add([Request(key, PROMPT, SAMPLED, range(1), stream=7)])
        for _ in range(steps or 0):
            tokens += [each.token_ids for each in engine.step()]
        if steps is None:
            tokens += [each.token_ids for each in finish(engine)]
    tokens += [each.token_ids for each in finish(engine)]
    assert len(tokens) == 3 and tokens[0] == tokens[1] == tokens[2]
    assert engine.stats.prompt_tokens_asked == 150
    assert engine.stats.prompt_tokens_computed <= len(PROMPT) + 2 * 4
    engine.end()
    assert engine.pool.num_used == engine.scheduler.cache.idle_blocks


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    engine = make_engine(loaded("llama"), block_size=4)
    engine.begin(arriving=True)
    engine.add([Request(key, PROMPT, SAMPLED, range(1)) for key in range(10)])
    assert len(finish(engine)) == 10
    assert engine.stats.prompt_tokens_computed == len(PROMPT)
    engine.end()


def test_a_second_prompt_goes_on_from_the_beginning_that_it_shares() -> None:
    engine = make_engine(loaded("llama"), block_size=4)
    engine.begin(arriving=True)
    engine.add([Request(0, PROMPT, SAMPLED, range(1))])
    finish(engine)
    engine.add([Request(1, [*PROMPT[:31], *PROMPT[:9]], SAMPLED, range(1))])
    [second] = finish(engine)
    assert second.num_cached_tokens == 28  # whole blocks of the 31
    assert engine.stats.prompt_tokens_computed == 50 + 12
    engine.end()


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_arrivals_and_cancels_at_random_change_no_sample(seed: int, lag: int) -> None:
    """A pool so small that idle nodes are given up and samples preempted meanwhile."""
    rng = random.Random(seed)
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    requests = requests_of(forest(seed) + forest(seed + 1)[:9], params, 2)
    alone = run(make_engine(loaded("llama")), requests).results
    engine = make_engine(loaded("llama"), block_size=4, blocks=60)
    engine._lag = lag
    engine.begin(arriving=True)
    left, done, cancelled = list(requests), {}, set()
    while left or engine.has_work:
        if left and rng.random() < 0.4:
            come = [left.pop() for _ in range(min(len(left), rng.randint(1, 4)))]
            engine.add(come)
            engine.scheduler.check_integrity()
        if rng.random() < 0.1:
            key = rng.randrange(len(requests))
            cancelled.update((key, sample) for sample in engine.cancel(key))
            engine.scheduler.check_integrity()
        if engine.has_work:
            for each in engine.step():
                done[each.request.key, each.sample] = each.token_ids
    engine.end()
    engine.scheduler.check_integrity()
    assert done.keys() | cancelled == alone.keys() and len(done) > len(cancelled)
    assert all(alone[key][0] == tokens for key, tokens in done.items())
    engine.reset_prefix_cache()
    assert engine.pool.num_used == 0
