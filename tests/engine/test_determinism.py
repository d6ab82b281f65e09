"""Tokens and log-probabilities are those of the request alone, bit for bit (float32, CPU)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.request import Request, SamplingParams
from tests.engine.jobs import (
    Ran,
    Result,
    forest,
    hope_for_the_best,
    judge,
    loaded,
    make_engine,
    requests_of,
    run,
)

NAMES = ["llama", "gemma2", "gpt2"]
PARAMS = SamplingParams(temperature=1.2, top_p=0.97, max_tokens=14, stop_token_ids=[5, 50, 95])
SAMPLES = 3
SCARCE_ROWS = [(400, 2), (60, 1)]
"""Blocks, and rows that leave most samples waiting: many small steps."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def job() -> list[Request]:
    """Every prompt of the forest, sampled in one of four ways, all mixed in one batch."""
    ways = [
        PARAMS,
        replace(PARAMS, temperature=0.6, top_k=9, top_p=1.0, repetition_penalty=1.3),
        replace(PARAMS, temperature=0.0, presence_penalty=0.5, stop_token_ids=[9]),
        replace(PARAMS, min_p=0.02, seed=77, logit_bias={40: 2.0}, min_tokens=4, logprobs=2),
    ]
    return [
        Request(i, prompt, ways[i % len(ways)], range(SAMPLES)) for i, prompt in enumerate(forest())
    ]


def run_job(name: str, requests: list[Request] | None = None, **config: int) -> Ran:
    return run(make_engine(loaded(name), **config), job() if requests is None else requests)


@cache
def reference(name: str) -> dict[tuple[int, int], Result]:
    """The job all at once, in a pool that holds everything."""
    return run_job(name).results


@pytest.mark.parametrize(
    ("name", "max_sequences"),
    [*((name, rows) for name in NAMES for rows in (5, 17)), ("llama", 1)],
)
@pytest.mark.turn(10)
def test_any_batch_size(name: str, max_sequences: int) -> None:
    assert run_job(name, max_sequences=max_sequences).results == reference(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turn(10)
def test_any_order(name: str) -> None:
    requests = job()
    random.Random(1).shuffle(requests)
    assert run_job(name, requests, max_sequences=7).results == reference(name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("blocks", [28, 60])
@pytest.mark.turn(8)
def test_preemption(name: str, blocks: int) -> None:
    engine = make_engine(loaded(name), blocks=blocks)
    hope_for_the_best(engine)
    assert run(engine, job()).results == reference(name)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turn(5)
def test_tiny_pool_without_preemption(name: str) -> None:
    assert run_job(name, blocks=28).results == reference(name)


@pytest.mark.parametrize("tokens", [2, 9, 1_000])
@pytest.mark.turn(6)
def test_whatever_is_known_of_the_lengths(tokens: int) -> None:
    """Admission goes by them, and may be as wrong as it likes."""
    engine = make_engine(loaded("llama"), blocks=40)
    engine.scheduler.admission.lengths.note(tokens, is_end=True, count=500)
    assert run(engine, job()).results == reference("llama")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turn(3)
def test_one_step_behind(name: str) -> None:
    """The host reads tokens a step late, as it does beside a GPU."""
    engine = make_engine(loaded(name), blocks=60, max_sequences=19)
    hope_for_the_best(engine)
    engine._lag = 1
    assert run(engine, job()).results == reference(name)
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize(
    ("name", "share"), [("llama", 0.1), ("llama", 0.9), *((name, 0.5) for name in NAMES)]
)
@pytest.mark.turn(5)
def test_resuming(name: str, share: float) -> None:
    """A part of the samples stands in the journal; the others come out as they would have."""
    rng = random.Random(2)
    left = [
        replace(request, samples=[s for s in request.samples if rng.random() > share])
        for request in job()
    ]
    resumed = run_job(name, left, max_sequences=6).results
    assert 0 < len(resumed) < len(reference(name))
    assert resumed == {key: reference(name)[key] for key in resumed}


@cache
def reference_of(lookahead: int) -> dict[tuple[int, int], Result]:
    return run_job("llama", lookahead=lookahead).results


@pytest.mark.parametrize(
    ("blocks", "rows"),
    [(400, 64), (34, 5), *(pytest.param(*pool, marks=pytest.mark.slow) for pool in SCARCE_ROWS)],
)
@pytest.mark.parametrize("lookahead", [1, 3, 8])
@pytest.mark.turn(10)
def test_resuming_across_lookaheads(lookahead: int, blocks: int, rows: int) -> None:
    """What had finished, and when, decides what stands when requests are read; not its numbers."""
    config = {"lookahead": lookahead, "blocks": blocks, "max_sequences": rows}
    whole = reference_of(lookahead)
    assert run_job("llama", **config).results == whole
    rng = random.Random(f"{lookahead} {blocks} {rows}")
    share = rng.random()
    left = [
        replace(request, samples=[s for s in request.samples if rng.random() > share])
        for request in job()
    ]
    first = rng.randrange(len(left))  # everything before it stands in the journal
    left[:first] = [replace(request, samples=()) for request in left[:first]]
    resumed = run_job("llama", left, **config).results
    assert resumed == {key: whole[key] for key in resumed}


@pytest.mark.slow
def test_resuming_falls_on_the_same_splits() -> None:
    """Later windows are split where earlier ones were, whatever is on record of these."""
    rng = random.Random(5)
    shots = forest(3)[0] * 2
    prompts = [shots + [rng.randrange(3, 128) for _ in range(rng.randint(1, 9))] for _ in range(9)]
    prompts += [shots + [5] * 3 + [i + 6] for i in range(6)]  # these share a little more
    requests = requests_of(prompts, PARAMS, samples=2)
    whole = run_job("llama", requests, lookahead=5)
    own = sum(len(prompt) - len(shots) for prompt in prompts)
    assert whole.stats.prompt_tokens_computed == len(shots) + own
    for done in (4, 11):
        left = [replace(request, samples=()) for request in requests[:done]] + requests[done:]
        resumed = run_job("llama", left, lookahead=5, blocks=60, max_sequences=3).results
        assert resumed == {key: whole.results[key] for key in resumed}


def test_more_samples_extend_a_job() -> None:
    more = [replace(request, samples=range(SAMPLES + 4)) for request in job()]
    extended = run_job("llama", more).results
    assert len(extended) > len(reference("llama"))
    assert extended | reference("llama") == extended


@pytest.mark.slow
def test_two_threads(two_threads: None) -> None:
    """How many threads share a product does not show either, whatever the batch."""
    whole = run_job("llama").results
    assert run_job("llama", max_sequences=5).results == whole
    assert run_job("llama", blocks=28).results == whole


@pytest.mark.slow
def test_what_an_engine_keeps_from_one_call_to_the_next_changes_nothing() -> None:
    engine = make_engine(loaded("llama"), max_sequences=9)
    first = run(engine, job()).results
    computed = engine.stats.prompt_tokens_computed
    again = run(engine, job()).results
    assert first == again == reference("llama")
    assert engine.stats.prompt_tokens_computed < 2 * computed


@pytest.mark.slow
def test_seed_key_and_sample_tell_samples_apart() -> None:
    params = replace(PARAMS, max_tokens=30, stop_token_ids=(), ignore_eos=True)
    prompt = forest()[0]

    def tokens(seed: int, key: int, sample: int) -> tuple[int, ...]:
        engine = make_engine(loaded("llama"), seed=seed)
        return tuple(run(engine, [Request(key, prompt, params, [sample])]).tokens[key, sample])

    drawn = [tokens(0, 0, 0), tokens(1, 0, 0), tokens(0, 1, 0), tokens(0, 0, 1)]
    assert len(set(drawn)) == 4
    own = Request(0, prompt, replace(params, seed=1), [0])
    assert tuple(run(make_engine(loaded("llama")), [own]).tokens[0, 0]) == drawn[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.turn(6)
def test_sampled_tokens_are_those_of_eager_attention(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    params = SamplingParams(temperature=0.9, max_tokens=20, stop_token_ids=[7, 8])
    requests = requests_of(forest(1), params, samples=4)
    ran = run(make_engine(loaded(name), max_sequences=11), requests)
    record_property("ties", sum(judge(c, name) > 0 for c in ran.completions.values()))


@pytest.mark.turn(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("part", [slice(0, 5), slice(3, None, 4), slice(9, 10)])
def test_part_of_a_job(name: str, part: slice) -> None:
    """Its prompts part where they do in the whole job's tree, so the very bits stay."""
    requests = job()
    leaves = PrefixTree(make_engine(loaded(name)).pool.block_size).insert(
        [request.prompt_token_ids for request in requests]
    )
    some = [
        replace(request, splits=leaf.splits())
        for request, leaf in zip(requests, leaves, strict=True)
    ][part]
    keys = {request.key for request in some}
    expected = {place: result for place, result in reference(name).items() if place[0] in keys}
    assert run_job(name, some).results == expected
