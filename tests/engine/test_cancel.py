"""Cancelling samples of a job that runs: their KV is free at once, and nobody else notices."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sharegen.engine.core.request import SamplingParams
from sharegen.errors import UsageError
from tests.engine.jobs import (
    Result,
    assert_empty,
    forest,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
    run,
)

SAMPLED = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
PROMPT = random_tokens(9, random.Random(2))
OTHER = random_tokens(13, random.Random(3))


@pytest.mark.parametrize("lag", [0, 1])
def test_running_samples_end_and_their_blocks_are_free(lag: int) -> None:
    engine = make_engine(loaded("llama"))
    engine._lag = lag
    alone = run(make_engine(loaded("llama")), requests_of([PROMPT, OTHER], SAMPLED, 6)).results
    engine.begin()
    engine.add(requests_of([PROMPT, OTHER], SAMPLED, 6))
    for _ in range(6):
        assert engine.step() == []
    before = engine.pool.num_used
    assert engine.cancel(0, [1, 4]) == [1, 4]
    assert engine.cancel(0, [1, 4, 99]) == [] and engine.cancel(77) == []
    assert engine.pool.num_used < before
    engine.scheduler.check_integrity()
    assert sorted(engine.cancel(1)) == list(range(6))
    assert {key for key, _ in engine.running()} == {0}
    engine.scheduler.check_integrity()
    done: dict[tuple[int, int], Result] = {}
    while engine.has_work:
        for c in engine.step():
            result = (c.token_ids, c.cumulative_logprob, c.finish_reason)
            done[c.request.key, c.sample] = result
    assert set(done) == {(0, sample) for sample in (0, 2, 3, 5)}
    assert all(alone[key] == result for key, result in done.items())
    assert engine.stats.cancelled == 8 and engine.stats.cancelled_tokens > 8
    engine.end()
    assert_empty(engine)


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_prompt_that_waits_or_is_in_flight_is_cancelled(lag: int) -> None:
    """One cancelled before it is computed, one in mid-prompt, one whose first tokens are drawn."""
    for steps in range(7):
        engine = make_engine(loaded("llama"), prefill_tokens=4, max_sequences=4)
        engine._lag = lag
        engine.begin()
        params = replace(SAMPLED, prompt_logprobs=1)
        engine.add(requests_of([PROMPT, OTHER], params, 3))
        done = [c for _ in range(steps) for c in engine.step()]
        assert engine.cancel(1, [0]) == [0] and sorted(engine.cancel(1)) == [1, 2]
        engine.scheduler.check_integrity()
        while engine.has_work:
            done += engine.step()
        assert sorted((c.request.key, c.sample) for c in done) == [(0, 0), (0, 1), (0, 2)]
        engine.end()
        assert_empty(engine)


def test_a_greedy_sample_stands_for_all_that_are_not_cancelled() -> None:
    engine = make_engine(loaded("llama"))
    engine.begin()
    engine.add(requests_of([PROMPT], replace(SAMPLED, temperature=0), 4))
    for _ in range(4):
        engine.step()
    assert engine.cancel(0, [0, 2]) == [0, 2]
    done = []
    while engine.has_work:
        done += engine.step()
    assert [c.sample for c in done] == [1, 3]
    engine.end()


def test_what_was_cancelled_cannot_be_forked() -> None:
    engine = make_engine(loaded("llama"))
    with pytest.raises(UsageError, match="nothing to cancel: no job runs"):
        engine.cancel(0)
    engine.begin()
    engine.add([replace(r, keep=True) for r in requests_of([PROMPT], SAMPLED, 2)])
    for _ in range(4):
        engine.step()
    engine.cancel(0, [1])
    with pytest.raises(UsageError, match="sample 1 of request 0 was cancelled: fork another one"):
        engine.fork((0, 1))
    new = engine.fork((0, 0), replace(SAMPLED, n=3))
    assert engine.cancel(0) == [0] and engine.cancel(new, [2]) == [2]
    done = []
    while engine.has_work:
        done += engine.step()
        engine.scheduler.check_integrity()
    assert sorted((c.request.key, c.sample) for c in done) == [(new, 0), (new, 1)]
    engine.end()
    assert_empty(engine)


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(i, marks=pytest.mark.slow) for i in (0, 1, 2, 4, 5, 6, 7))]
)
@pytest.mark.turn(8)
def test_random_cancellations_change_nothing_else(seed: int) -> None:
    """Whatever is cancelled, whenever, in little memory: the rest draws what it draws alone."""
    rng = random.Random(seed)
    prompts = forest(seed)
    params = replace(SAMPLED, ignore_eos=seed % 2 == 0)
    requests = requests_of(prompts, params, 5)
    if seed >= 2:
        requests = [replace(r, required=rng.randint(0, 5)) for r in requests]
    expected = run(make_engine(loaded("llama")), requests_of(prompts, params, 5)).results
    engine = make_engine(loaded("llama"), blocks=60, max_sequences=7)
    engine._lag = seed % 2
    ended: set[tuple[int, int]] = set()
    done: dict[tuple[int, int], Result] = {}
    engine.begin()
    engine.add(requests)
    while engine.has_work:
        for c in engine.step():
            assert (c.request.key, c.sample) not in done
            done[c.request.key, c.sample] = (c.token_ids, c.cumulative_logprob, c.finish_reason)
        if rng.random() < 0.2:
            key = rng.randrange(len(prompts))
            some = rng.choice([None, rng.sample(range(5), rng.randint(1, 4))])
            ended |= {(key, sample) for sample in engine.cancel(key, some)}
        if rng.random() < 0.2:
            engine.call(rng.randrange(len(prompts)), rng.randint(0, 6))
        engine.scheduler.check_integrity()
    engine.end()
    assert_empty(engine)
    assert set(done) == set(expected) - ended and ended
    assert all(expected[key] == result for key, result in done.items())


def test_rows_go_to_what_is_due_and_then_to_what_is_nearly() -> None:
    """Six requests, two samples of each due, eight rows: the first four fill them."""
    prompts = [random_tokens(9, random.Random(i)) for i in range(6)]
    engine = make_engine(loaded("llama"), max_sequences=8)
    engine.begin()
    engine.add([replace(r, required=2) for r in requests_of(prompts, SAMPLED, 5)])
    began: list[tuple[int, int]] = []

    def step() -> None:
        for c in engine.step():
            if c.request.key == 1 and c.sample < 2:
                engine.call(1, 4)
        running = sorted((s.group.request.key, s.sample) for s in engine.scheduler.rows.running())
        began.extend(pair for pair in running if pair not in began)

    while len(began) < 8:
        step()
    assert began == [(key, sample) for key in range(4) for sample in (0, 1)]
    while len(began) < 10:
        step()
    assert began[8:] == [(1, 2), (1, 3)]  # what was called comes before new prompts
    while len(began) < 16:
        step()
    # What is early comes when nothing else is left: the first of each request, in their order.
    assert began[10:] == [(0, 2), (1, 4), (4, 0), (4, 1), (5, 0), (5, 1)]
    while engine.has_work:
        step()
    assert len(began) == 30
    engine.end()
    assert_empty(engine)
