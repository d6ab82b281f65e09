"""Samples that make room, in every way of coming back: the very bits of a job that had room."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from sharegen.engine.core.request import BeamSearchParams, Completion, Request, SamplingParams
from sharegen.engine.schedule.swapping import SwapCost
from tests.engine.jobs import (
    CheckedEngine,
    Ran,
    assert_empty,
    forest,
    hope_for_the_best,
    loaded,
    make_engine,
    run,
    swap_always,
)
from tests.engine.tiny_models import TINY

WAYS = [
    SamplingParams(temperature=1.1, max_tokens=25, stop_token_ids=[5, 50, 95]),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.3, logprobs=2),
    SamplingParams(top_p=0.9, max_tokens=20, min_tokens=4, seed=7, presence_penalty=0.4),
    SamplingParams(top_k=9, max_tokens=30, logit_bias={77: 2.0}, frequency_penalty=0.5),
]
BEAMS = BeamSearchParams(beam_width=3, max_tokens=14, ignore_eos=True)


def job(samples: int = 3) -> list[Request]:
    """Samples with filters, penalties and biases, and beam searches among them."""
    prompts = forest()[::2]
    drawn = [Request(i, p, WAYS[i % 4], range(samples)) for i, p in enumerate(prompts)]
    found = [
        Request(100 + i, p, BEAMS.of_rows, range(3), beam=BEAMS) for i, p in enumerate(prompts[:2])
    ]
    return random.Random(0).sample([*drawn, *found], len(drawn) + len(found))


def tight(name: str = "llama", lag: int = 0, **config: Any) -> CheckedEngine:
    """An engine whose samples make room for each other all the time."""
    sizes: dict[str, Any] = {"blocks": 40, "host_blocks": 400}
    engine = make_engine(loaded(name), **(sizes | config))
    engine._lag = lag
    hope_for_the_best(engine)
    swap_always(engine)
    return engine


def never_swap(engine: CheckedEngine) -> CheckedEngine:
    engine.scheduler.swapping.cost = SwapCost(fixed=1e9)
    return engine


def swaps_of(ran: Ran) -> int:
    """At least one, and all tokens are given to the model once where host memory has room."""
    assert ran.stats.preemptions >= ran.stats.swaps > 0
    return ran.stats.swaps


@pytest.mark.turn(4)
def test_what_is_swapped_comes_back_to_the_bit() -> None:
    requests = job(samples=2)
    whole = run(make_engine(loaded("llama")), requests)
    engine = tight()
    ran = run(engine, requests)
    assert ran.results == whole.results
    assert swaps_of(ran) and ran.stats.tokens_replayed == 0
    assert len(engine.scheduler.swapping._free) == engine.scheduler.swapping.num_slots


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lag", "blocks"),
    [("llama", 0, 40), ("gemma2", 1, 40), ("deepseek_v3", 1, 32)],  # of latents fewer are needed
)
@pytest.mark.turn(2)
def test_swapped_or_fed_again_it_is_the_same(name: str, lag: int, blocks: int) -> None:
    """Sliding windows, too; with the host a step behind, and host memory for some alone."""
    whole = run(make_engine(loaded(name), blocks=900), job())
    ran = run(tight(name, lag, blocks=blocks), job())
    assert ran.results == whole.results and swaps_of(ran) and not ran.stats.tokens_replayed
    again = run(never_swap(tight(name, lag, blocks=blocks)), job())
    assert again.results == whole.results
    assert again.stats.preemptions > again.stats.swaps == 0 < again.stats.tokens_replayed
    with pytest.warns(UserWarning, match="swap_space is full: host memory for 9 KV blocks is too"):
        few = run(tight(name, lag, blocks=blocks, host_blocks=9), job())
    assert few.results == whole.results and swaps_of(few) and few.stats.tokens_replayed
    assert ran.stats.decode_steps < again.stats.decode_steps


@pytest.mark.slow
def test_narrow_blocks_go_with_their_scales() -> None:
    whole = run(make_engine(loaded("llama"), blocks=900, kv_cache_dtype="fp8"), job())
    ran = run(tight(lag=1, blocks=20, kv_cache_dtype="fp8"), job())
    assert ran.results == whole.results and swaps_of(ran) and not ran.stats.tokens_replayed


@pytest.mark.slow
@pytest.mark.skipif("jamba" not in TINY, reason="this transformers hands no states over")
def test_a_model_with_states_feeds_its_tokens_again() -> None:
    requests = [request for request in job() if request.beam is None]
    whole = run(make_engine(loaded("jamba"), blocks=900), requests)
    with pytest.warns(UserWarning, match="the model keeps states beside its KV, so preempted"):
        engine = tight("jamba")
    ran = run(engine, requests)
    assert ran.results == whole.results
    assert ran.stats.preemptions > ran.stats.swaps == 0 < ran.stats.tokens_replayed


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lag"), [("llama", 0), ("gemma2", 1), ("deepseek_v3", 1)])
def test_one_pass_fills_what_was_lost(name: str, lag: int) -> None:
    """As on a GPU: the tokens are the same, their last bits need not be.

    Of the longest, what is beyond one pass is fed again.
    """
    requests = [request for request in job() if request.beam is None]
    whole = run(make_engine(loaded(name), blocks=900), requests)
    engine = tight(name, lag, host_blocks=0)
    engine.scheduler.swapping.one_pass = 12
    ran = run(engine, requests)
    assert ran.tokens == whole.tokens
    for place, completion in ran.completions.items():
        expected = whole.completions[place].cumulative_logprob
        assert completion.cumulative_logprob == pytest.approx(expected, abs=1e-4)
    assert engine.scheduler.swapping.tokens_filled > 0 == ran.stats.swaps


@pytest.mark.parametrize(
    ("name", "lag"), [("llama", 0), pytest.param("gemma2", 1, marks=pytest.mark.slow)]
)
def test_rows_fill_what_was_lost_with_the_same_bits(name: str, lag: int) -> None:
    """As the deterministic mode does: a few rows at a time, so that samples come in parts."""
    requests = [
        replace(request, params=replace(request.params, ignore_eos=True, max_tokens=60))
        for request in job()
        if request.beam is None
    ]
    whole = run(make_engine(loaded(name), blocks=900, deterministic=True), requests)
    engine = tight(name, lag, blocks=48, host_blocks=0, deterministic=True, max_sequences=7)
    ran = run(engine, requests)
    assert ran.results == whole.results
    assert engine.scheduler.swapping.tokens_filled > 20 > ran.stats.swaps == 0


def waiting(engine: CheckedEngine) -> list[tuple[int, int]]:
    """Who lies in host memory."""
    saved = engine.scheduler.swapping._saved
    return [(s.group.request.key, s.sample) for s in saved if s.group.search is None]


@pytest.mark.slow
def test_cancelled_forked_and_left_while_in_host_memory() -> None:
    """Whoever is cancelled there gives its slots back; a fork goes on from its text; a job that is
    left in the middle leaves nothing, and the next one is whole."""
    requests = [replace(r, keep=r.beam is None) for r in job() if not r.params.is_greedy]
    whole = run(make_engine(loaded("llama"), blocks=900), requests).results
    engine = tight(lag=1)
    cancelled: set[tuple[int, int]] = set()
    forks: dict[int, tuple[tuple[int, int], int]] = {}
    found: dict[tuple[int, int], Completion] = {}
    for completion in engine.generate(requests):
        found[completion.request.key, completion.sample] = completion
        there = [place for place in waiting(engine) if place[0] not in forks]
        if there and len(cancelled) < 3:
            key, sample = there[0]
            assert engine.cancel(key, [sample]) == [sample]
            assert (key, sample) not in waiting(engine)
            cancelled.add((key, sample))
        elif there and len(forks) < 3:
            outputs = len(engine.running()[there[0]])
            forks[engine.fork(there[0], tokens=outputs)] = (there[0], outputs)
    assert len(cancelled) == len(forks) == 3
    drawn = {place: each for place, each in found.items() if place[0] not in forks}
    assert set(drawn) == set(whole) - cancelled
    for place, each in drawn.items():
        assert (each.token_ids, each.cumulative_logprob, each.finish_reason) == whole[place]
    for key, (parent, outputs) in forks.items():
        of_fork = next(each for place, each in found.items() if place[0] == key)
        prompt = [*of_fork.request.prompt_token_ids]
        assert prompt[len(prompt) - outputs :] == whole[parent][0][:outputs]

    stream = engine.generate(requests)
    for _ in stream:
        if waiting(engine):
            break
    assert waiting(engine)
    stream.close()
    assert not waiting(engine)
    assert_empty(engine)
    engine.reset_prefix_cache()
    assert run(engine, requests).results == whole


def test_the_cheaper_way_is_taken() -> None:
    """A sample of many tokens is swapped where one of few feeds them again."""
    engine = tight()
    swapping = engine.scheduler.swapping
    swapping.cost = SwapCost(fixed=5.0, a_block=1.0)
    seen: list[tuple[int, int]] = []
    real = swapping.save

    def save(sequence: Any, content: Any) -> None:
        before, swapping.seconds_a_token = swapping.swaps, 1.0
        real(sequence, content)
        seen.append((sequence.fed, swapping.swaps - before))

    swapping.save = save  # type: ignore[method-assign]
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    run(engine, [Request(i, [9 + i] * 9, params, range(2)) for i in range(6)])
    assert {swapped for _, swapped in seen} == {0, 1}
    for fed, swapped in seen:
        assert swapped == (5.0 + -(-fed // 4) < fed)
