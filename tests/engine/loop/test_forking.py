"""Forks: exact, on the KV of what they go on from, and with every block accounted for."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.errors import RequestError, UsageError
from tests.engine.jobs import (
    CONTEXT,
    assert_empty,
    forest,
    hope_for_the_best,
    judge,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
)

GREEDY = SamplingParams(temperature=0, max_tokens=13, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0)
PROMPT = random_tokens(30, random.Random(1))


def kept(prompts: list[list[int]], params: SamplingParams, samples: int = 1) -> list[Request]:
    return [replace(r, keep=True) for r in requests_of(prompts, params, samples)]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.turn(5)
def test_a_finished_sample_is_continued_on_its_kv(name: str, block_size: int, lag: int) -> None:
    engine = make_engine(loaded(name), block_size=block_size, blocks=400)
    engine._lag = lag
    forks: dict[int, Completion] = {}
    done: list[Completion] = []
    for completion in engine.generate(kept([PROMPT, PROMPT[:9]], SAMPLED, samples=3)):
        done.append(completion)
        if completion.request.key < 2:
            before = engine.stats.prompt_tokens_computed
            forks[engine.fork(completion, replace(GREEDY, n=2))] = completion
            assert engine.stats.prompt_tokens_computed == before
    assert len(forks) == 6 and len(done) == 6 + 12
    # A fork computes what was drawn last and never fed, and nothing else.
    assert engine.stats.prompt_tokens_computed <= len(PROMPT) + len(PROMPT[:9]) + 6
    for completion in done:
        judge(completion, name)
        if completion.request.key in forks:
            parent = forks[completion.request.key]
            whole = [*parent.request.prompt_token_ids, *parent.token_ids]
            assert completion.request.prompt_token_ids == whole


@pytest.mark.turn(3)
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("tokens", [None, 1, 5])
def test_a_running_sample_is_continued_while_it_goes_on(lag: int, tokens: int | None) -> None:
    engine = make_engine(loaded("llama"))
    engine._lag = lag
    short = replace(SAMPLED, max_tokens=6)
    requests = [Request(0, PROMPT, SAMPLED, range(2)), Request(1, PROMPT[:20], short, range(1))]
    forks: dict[int, list[int]] = {}
    done = []
    for completion in engine.generate(requests):
        done.append(completion)
        if completion.request.key == 1:
            for (key, sample), drawn in engine.running().items():
                assert key == 0 and len(drawn) >= 5
                shared = drawn[:tokens]
                forks[engine.fork((key, sample), replace(GREEDY, n=3), tokens=tokens)] = shared
    assert len(forks) == 2 and len(done) == 3 + 6
    assert engine.stats.prompt_tokens_computed <= len(PROMPT) + len(forks)
    for completion in done:
        judge(completion, "llama")
        shared = forks.get(completion.request.key, [])
        assert list(completion.request.prompt_token_ids)[len(PROMPT) :] == shared
    by_sample = {c.sample: c.token_ids for c in done if c.request.key == 0}
    for (sample, whole), shared in zip(sorted(by_sample.items()), forks.values(), strict=True):
        assert whole[: len(shared)] == shared and len(whole) == 13, sample


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("blocks", [30, pytest.param(45, marks=pytest.mark.slow), 400])
@pytest.mark.turn(6)
@pytest.mark.slow
def test_trees_of_forks_in_any_memory(keep: bool, blocks: int) -> None:
    """Three generations of forks, while blocks run out: kept KV goes before anyone must wait."""
    engine = make_engine(loaded("llama"), blocks=blocks, max_sequences=9)
    hope_for_the_best(engine)
    requests = [replace(r, keep=keep) for r in requests_of(forest()[:8], SAMPLED, 2)]
    depth = {request.key: 0 for request in requests}
    done = 0
    for completion in engine.generate(requests):
        done += 1
        judge(completion, "llama")
        generation = depth[completion.request.key]
        if generation < 3:
            key = engine.fork(completion, replace(SAMPLED, n=1, max_tokens=5), tokens=5)
            depth[key] = generation + 1
    assert done == 16 * 4
    assert_empty(engine)


@pytest.mark.parametrize("blocks", [5, 6])
def test_a_fork_whose_path_rounds_up_beyond_the_memory(blocks: int) -> None:
    """5 + 5 + 1 tokens in blocks of 4 are five blocks with one to write on in; 11 are three."""
    engine = make_engine(loaded("llama"), blocks=blocks)
    done = []
    for completion in engine.generate(kept([PROMPT[:5]], replace(SAMPLED, max_tokens=6))):
        judge(completion, "llama")
        done.append(completion)
        if len(done) == 1:
            engine.fork(completion, replace(GREEDY, max_tokens=3))
    assert len(done) == 2
    assert engine.stats.prompt_tokens_computed == (5 + 1 if blocks == 6 else 5 + 11)
    assert_empty(engine)


def test_kept_kv_goes_with_the_job() -> None:
    engine = make_engine(loaded("llama"))
    stream = engine.generate(kept(forest(), SAMPLED))
    next(stream)
    assert engine.scheduler.cache.kept
    stream.close()  # type: ignore[attr-defined]
    assert not engine.scheduler.cache.kept
    assert_empty(engine)


def test_nothing_is_kept_unless_asked() -> None:
    engine = make_engine(loaded("llama"))
    for _ in engine.generate(requests_of(forest(), SAMPLED)):
        assert not engine.scheduler.cache.kept


def test_draws_are_the_forks_own_and_repeatable() -> None:
    """Two forks of one text draw other samples; when and in what company does not matter."""

    def drawn(company: int) -> list[list[int]]:
        engine = make_engine(loaded("llama"))
        requests = kept([PROMPT, *forest()[:company]], SAMPLED)
        tokens: dict[int, list[int]] = {}
        wanted = None
        for completion in engine.generate(requests):
            if completion.request.key == 0:
                wanted = engine.fork(completion, replace(SAMPLED, n=2))
                assert engine.fork(completion, replace(SAMPLED, n=2)) == wanted
            elif completion.request.key == wanted:
                tokens[completion.sample] = completion.token_ids
        assert sorted(tokens) == [0, 1, 2, 3]
        return [tokens[sample] for sample in range(4)]

    alone = drawn(0)
    assert len({tuple(tokens) for tokens in alone}) == 4
    assert drawn(9) == alone


def test_with_prompt_logprobs() -> None:
    engine = make_engine(loaded("llama"))
    seen = None
    for completion in engine.generate(kept([PROMPT], SAMPLED)):
        if completion.request.key == 0:
            engine.fork(completion, replace(GREEDY, prompt_logprobs=0))
            parent = completion
        else:
            seen = completion.prompt_logprobs
    assert seen is not None and len(seen) == len(PROMPT) + 13
    total = sum(entry.logprob for entry in seen[len(PROMPT) :] if entry is not None)
    assert total == pytest.approx(parent.cumulative_logprob, abs=1e-3)


def test_every_sample_of_a_greedy_request_is_forked_on_the_one_kv_that_they_have() -> None:
    engine = make_engine(loaded("llama"))
    forks, done = {}, []
    for completion in engine.generate(kept([PROMPT], GREEDY, samples=3)):
        done.append(completion)
        if completion.request.key == 0:
            forks[engine.fork(completion, SAMPLED)] = completion.token_ids
    assert len(forks) == 3 and len(done) == 6
    assert engine.stats.prompt_tokens_computed <= len(PROMPT) + 3
    for completion in done:
        judge(completion, "llama")


def test_every_sample_of_a_greedy_request_runs() -> None:
    engine = make_engine(loaded("llama"))
    short = Request(0, PROMPT[:9], replace(GREEDY, max_tokens=2), [0])
    stream = engine.generate([short, Request(1, PROMPT, GREEDY, [2, 4])])
    next(stream)
    running = engine.running()
    assert running.keys() == {(1, 2), (1, 4)} and running[1, 2] == running[1, 4]
    fork = engine.fork((1, 4), replace(SAMPLED, max_tokens=3))
    assert sorted(completion.request.key for completion in stream) == sorted([1, 1, fork])


def test_what_cannot_be_forked_is_said_in_one_line() -> None:
    engine = make_engine(loaded("llama"))
    with pytest.raises(UsageError, match="a fork joins the job that runs"):
        engine.fork((0, 0))
    long = [random_tokens(CONTEXT - 13, random.Random(2))]
    for completion in engine.generate(requests_of([PROMPT, *long], SAMPLED)):
        with pytest.raises(UsageError, match="sample 7 of request 0 does not run"):
            engine.fork((0, 7))
        for tokens in (0, -1, 14):
            with pytest.raises(UsageError, match=rf"tokens is {tokens}: the sample has 13"):
                engine.fork(completion, tokens=tokens)
        if completion.request.key == 1:
            with pytest.raises(RequestError, match=f"the prompt has {CONTEXT} tokens"):
                engine.fork(completion)
    assert engine.stats.completions == 2


def test_a_finished_sample_is_forked_by_its_completion_alone() -> None:
    """Whether its KV is still kept depends on memory, and must not decide that."""
    engine = make_engine(loaded("llama"))
    finished = 0
    for completion in engine.generate(kept([PROMPT, PROMPT[:9]], SAMPLED)):
        finished += 1
        if finished == 1:
            place = completion.request.key, completion.sample
            assert place not in engine.running()
            with pytest.raises(UsageError, match="does not run: fork its completion"):
                engine.fork(place)
            engine.fork(completion)
    assert finished > 2


def test_a_completion_of_another_job_shares_nothing_by_mistake() -> None:
    """The same key and sample run, with another prompt: the fork goes on from its own text."""
    engine = make_engine(loaded("llama"))
    [old] = engine.generate(requests_of([PROMPT], SAMPLED))
    wanted = None
    for completion in engine.generate(kept([PROMPT[::-1]], SAMPLED)):
        judge(completion, "llama")
        if wanted is None:
            wanted = engine.fork(old, GREEDY)
        else:
            assert completion.request.key == wanted
            assert completion.request.prompt_token_ids == [*PROMPT, *old.token_ids]


def fork_at_random(seed: int) -> None:
    """A machine that is barely enough, and forks of whatever is there at any moment."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 3, 4, 16])
    engine = make_engine(
        loaded("llama"),
        block_size=block_size,
        blocks=-(-150 // block_size) + rng.randint(8, 30),
        max_sequences=rng.choice([1, 3, 8, 40]),
        prefill_tokens=rng.choice([3, 24, 512]),
        lookahead=rng.choice([1, 4, 1000]),
    )
    engine._lag = rng.randint(0, 1)
    engine.scheduler.prefill.ahead_tokens = rng.choice([0, 50])
    engine.scheduler.prefill.ahead_steps = rng.choice([0, 3])
    if rng.random() < 0.5:
        hope_for_the_best(engine)
    requests = [
        Request(
            i,
            prompt,
            replace(SAMPLED, max_tokens=rng.randint(1, 20), stop_token_ids=range(3, 128, 17)),
            range(rng.randint(1, 3)),
            keep=rng.random() < 0.5,
        )
        for i, prompt in enumerate(forest(seed))
    ]
    wanted, done = sum(len(request.samples) for request in requests), 0
    for completion in engine.generate(requests):
        done += 1
        judge(completion, "llama")
        places: list[Completion | tuple[int, int]] = [completion, *engine.running()]
        for parent in rng.sample(places, min(len(places), rng.randint(0, 3))):
            if wanted > 80:
                break
            request = completion.request
            has = len(engine.running()[parent]) if isinstance(parent, tuple) else None
            count = rng.randint(1, has if has is not None else len(completion.token_ids))
            if len(request.prompt_token_ids) > 90:
                continue
            params = replace(SAMPLED, n=rng.randint(1, 3), max_tokens=rng.randint(1, 9))
            engine.fork(parent, params, tokens=count)
            engine.scheduler.check_integrity()
            wanted += params.n
    assert done == wanted
    assert_empty(engine)


BRIEF_SEEDS = {3, 4, 6, 7, 9, 11}
"""Every size of a block and of a prefill, few rows and many, with and without a lag and hope."""


@pytest.mark.parametrize(
    "seed",
    [i if i in BRIEF_SEEDS else pytest.param(i, marks=pytest.mark.slow) for i in range(12)],
)
@pytest.mark.turn(10)
def test_random_forks(seed: int) -> None:
    fork_at_random(seed)


def test_penalties_on_outputs_begin_anew_and_repetition_sees_all() -> None:
    """A fork is a request whose prompt is the whole text so far: drawn as that request would be."""
    params = replace(
        SAMPLED, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.4, min_tokens=3
    )
    engine = make_engine(loaded("llama"))
    forks = {}
    for completion in engine.generate(kept([PROMPT], params)):
        forks[completion.request.key] = completion
        if completion.request.key == 0:
            engine.fork(completion)
    [forked] = (completion for key, completion in forks.items() if key != 0)
    assert forked.request.prompt_token_ids == [*PROMPT, *forks[0].token_ids]
    plain = list(make_engine(loaded("llama")).generate([replace(forked.request, keep=False)]))
    assert forked.token_ids == plain[0].token_ids
    assert len(set(forked.token_ids) & set(forks[0].token_ids)) > 0


@pytest.mark.parametrize("samples", [1, 3])
def test_in_the_deterministic_mode_it_does_not_matter_when_one_forks(samples: int) -> None:
    """From a sample that runs, that has ended and is kept, or that is gone; and from a fork."""
    parent = Request(0, PROMPT, SAMPLED, range(samples))
    other = Request(1, PROMPT[:20] + [9] * 9, replace(SAMPLED, max_tokens=8), range(2))
    short = replace(SAMPLED, n=2, max_tokens=6)

    def forked(when: str) -> dict[tuple[int, int], tuple[list[int], float]]:
        engine = make_engine(loaded("llama"), deterministic=True)
        engine._lag = 1
        key = again = -1
        found = {}
        for done in engine.generate([replace(parent, keep=when == "kept"), other]):
            judge(done, "llama")
            place = done.request.key, done.sample
            if key < 0 and place == ((1, 0) if when == "runs" else (0, 0)):
                key = engine.fork((0, 0) if when == "runs" else done, short, tokens=5)
            if place[0] == key and again < 0:
                again = engine.fork(done, short, tokens=3)
            if place[0] in (key, again):
                found[place] = done.token_ids, done.cumulative_logprob
        return found

    runs = forked("runs")
    assert len(runs) == 4
    assert forked("kept") == forked("gone") == runs
