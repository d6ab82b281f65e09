"""Requests that come one by one while others run: they share what stands, and nobody notices."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from tests.engine.jobs import (
    GREEDY,
    forest,
    judge,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
    run,
)

SAMPLED = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True, seed=3)
Key = tuple[int, int]
PROMPT = random_tokens(50, random.Random(1))


def finish(engine: Engine) -> list[Completion]:
    done = []
    while engine.has_work:
        done += engine.step()
    return done


@pytest.mark.turn(2)
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


@pytest.mark.parametrize("pieces", [1, 2, 6])
def test_requests_of_one_sample_cost_what_one_request_of_all_does(pieces: int) -> None:
    """In prompt tokens and in blocks, but for a block of the prompt's end for each later piece."""
    count, block = 24, 4

    def costs(*groups: list[Request]) -> tuple[int, int, list[list[int]]]:
        engine = make_engine(loaded("llama"), block_size=block)
        engine.begin(arriving=True)
        done: list[Completion] = []
        for group in groups:
            engine.add(group)
            done += engine.step()  # they run when the next ones come
        done += finish(engine)
        engine.end()
        stats = engine.stats
        tokens = [each.token_ids for each in done]
        return stats.prompt_tokens_computed, stats.peak_blocks, tokens

    computed, blocks, tokens = costs([Request(0, PROMPT, SAMPLED, range(count), stream=7)])
    assert computed == len(PROMPT) and len(tokens) == count
    each = count // pieces
    groups = [
        [Request(piece * each + i, PROMPT, SAMPLED, range(1)) for i in range(each)]
        for piece in range(pieces)
    ]
    apart = costs(*groups)
    assert computed <= apart[0] <= computed + (pieces - 1) * block
    assert apart[1] <= blocks + pieces - 1
    assert len(apart[2]) == count


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


def come_and_go(
    engine: Engine, requests: list[Request], rng: random.Random
) -> dict[Key, Completion]:
    """What is drawn of requests that come at random, a few at a time."""
    engine.begin(arriving=True)
    left, done = list(requests), {}
    while left or engine.has_work:
        if left and rng.random() < 0.4:
            engine.add([left.pop() for _ in range(min(len(left), rng.randint(1, 4)))])
            engine.scheduler.check_integrity()
        for each in engine.step() if engine.has_work else ():
            done[each.request.key, each.sample] = each
    engine.end()
    engine.scheduler.check_integrity()
    return done


@pytest.mark.parametrize(
    ("name", "config"), [("llama", {"kv_cache_dtype": "fp8"}), ("lfm2", {})], ids=["fp8", "states"]
)
def test_other_caches_take_arrivals(name: str, config: dict[str, Any]) -> None:
    requests = requests_of(forest(2), GREEDY)
    engine = make_engine(loaded(name), **config)
    done = come_and_go(engine, requests, random.Random(0))
    assert done.keys() == {(request.key, 0) for request in requests}
    if not config:
        assert not any(judge(each, name) for each in done.values())


@pytest.mark.turn(4)
def test_log_probabilities_of_prompts_are_found_however_they_come() -> None:
    """Beside prompts of which nobody asks any."""
    prompts = forest(3)
    asking = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    requests = [
        Request(i, prompt, asking if i % 3 else GREEDY, range(1))
        for i, prompt in enumerate(prompts + prompts)
    ]
    alone = run(make_engine(loaded("llama")), requests).completions
    done = come_and_go(make_engine(loaded("llama")), requests, random.Random(1))
    for key, each in done.items():
        assert (each.prompt_logprobs is None) == (alone[key].prompt_logprobs is None)
        pairs = zip(each.prompt_logprobs or (), alone[key].prompt_logprobs or (), strict=True)
        for got, want in list(pairs)[1:]:
            assert got.token_id == want.token_id
            assert got.logprob == pytest.approx(want.logprob, abs=1e-4)


@pytest.mark.turn(4)
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
