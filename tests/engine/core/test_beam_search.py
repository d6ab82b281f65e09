"""The oracle: texts and scores of a beam search are transformers' own, however it was computed."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.engine.core.beam_search import BeamSearch, Choice
from sharegen.engine.core.request import BeamSearchParams, Completion, Request, SamplingParams
from sharegen.engine.model.load import load_model
from sharegen.errors import CapacityError, RequestError, UsageError
from tests.engine.jobs import (
    CheckedEngine,
    Ran,
    assert_empty,
    forest,
    loaded,
    make_engine,
    original,
    poison,
    run,
)
from tests.engine.test_exact import SETTINGS
from tests.engine.tiny_models import make_tiny

ARCHITECTURES = [
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt_neox", "gpt2", "olmo2",
    "mixtral", "cohere2", "gpt_oss", "deepseek_v3", "qwen3_next", "falcon_h1",
]  # fmt: skip
PROMPTS = forest()[::4]

SEARCHES: dict[str, BeamSearchParams] = {
    "plain": BeamSearchParams(beam_width=4, max_tokens=11),
    "at once": BeamSearchParams(beam_width=3, max_tokens=14, early_stopping=True),
    "never": BeamSearchParams(
        beam_width=2, max_tokens=13, early_stopping="never", length_penalty=2.0
    ),
    "short": BeamSearchParams(beam_width=5, max_tokens=9, length_penalty=-1.0),
    "wide": BeamSearchParams(beam_width=16, max_tokens=6, length_penalty=0.0),
    "no end": BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True),
    "many ends": BeamSearchParams(beam_width=2, max_tokens=12, stop_token_ids=range(40, 80)),
    "one": BeamSearchParams(beam_width=1, max_tokens=5),
    "one, never": BeamSearchParams(
        beam_width=1,
        max_tokens=9,
        early_stopping="never",
        length_penalty=5.0,
        stop_token_ids=range(40, 120),
    ),
}


def searches(prompts: list[list[int]], *names: str) -> list[Request]:
    """Every prompt, each search of it."""
    return [
        Request(
            10 * i + list(SEARCHES).index(name), prompt, SEARCHES[name].of_rows,
            range(SEARCHES[name].beam_width), beam=SEARCHES[name],
        )
        for i, prompt in enumerate(prompts)
        for name in names or SEARCHES
    ]  # fmt: skip


@cache
def generated(
    model: str, prompt: tuple[int, ...], params: BeamSearchParams
) -> list[tuple[list[int], float]]:
    """What transformers finds: texts, ends included, and scores, the best first."""
    ends = [] if params.ignore_eos else [2]
    ends += params.stop_token_ids
    found = original(model).generate(
        torch.tensor([prompt]),
        max_new_tokens=params.max_tokens,
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=ends or None,
        pad_token_id=-1,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    texts = found.sequences[:, len(prompt) :].tolist()
    if params.beam_width == 1:  # which generate() takes for a greedy decoding
        steps = found.scores
        logprobs = [s.log_softmax(-1)[0, t].item() for s, t in zip(steps, texts[0], strict=True)]
        return [(texts[0], sum(logprobs) / len(texts[0]) ** params.length_penalty)]
    scores = found.sequences_scores.tolist()
    return [([t for t in text if t >= 0], score) for text, score in zip(texts, scores, strict=True)]


def check(model: str, engine: CheckedEngine, requests: list[Request]) -> dict[str, int]:
    """Assert that texts and scores are transformers'; returns how many texts ended by what."""
    return check_texts(model, run(engine, requests), requests)


def check_texts(model: str, ran: Ran, requests: list[Request]) -> dict[str, int]:
    """The same of a job that has run."""
    ends: dict[str, int] = {}
    for request in requests:
        assert request.beam is not None
        expected = generated(model, tuple(request.prompt_token_ids), request.beam)
        found = [ran.completions[request.key, rank] for rank in request.samples]
        assert [c.token_ids for c in found] == [text for text, _ in expected]
        assert [c.score for c in found] == pytest.approx(
            [s for _, s in expected], rel=1e-6, abs=2e-5
        )
        for completion in found:
            length = len(completion.token_ids)
            scaled = completion.cumulative_logprob / length**request.beam.length_penalty
            assert scaled == completion.score
            ends[completion.finish_reason] = ends.get(completion.finish_reason, 0) + 1
    return ends


@given(st.integers(0, 1000), st.sampled_from([-1.0, 0.0, 0.7, 2.0]))
@settings(max_examples=20, deadline=None)
def test_a_search_as_wide_as_all_texts_finds_the_best(seed: int, length_penalty: float) -> None:
    """Of three tokens, the last of which ends a text: all texts of up to four are looked at."""
    rng, limit, end = random.Random(seed), 4, 2
    table: dict[tuple[int, ...], list[float]] = {}

    def logprobs(text: tuple[int, ...]) -> list[float]:
        weights = [rng.random() + 0.05 for _ in range(3)]
        return table.setdefault(text, [math.log(w / sum(weights)) for w in weights])

    params = BeamSearchParams(
        99, limit, length_penalty=length_penalty, early_stopping="never", ignore_eos=True
    )
    search: BeamSearch[tuple[int, ...]] = BeamSearch(params, limit)
    beams: list[tuple[int, ...]] = [()]
    while beams:

        def end_of(choice: Choice, beams: list[tuple[int, ...]] = beams) -> Any:
            text = (*beams[choice.parent], choice.token)
            return text if choice.token == end or len(text) == limit else None

        told = [list(enumerate(logprobs(text))) for text in beams]
        choices = search.advance(told, 1, end_of)
        alive = zip(choices, search.logprobs, strict=False)
        beams = [(*beams[c.parent], c.token) for c, logprob in alive if logprob > -math.inf]
        search.logprobs = [logprob for logprob in search.logprobs if logprob > -math.inf]

    def score(text: tuple[int, ...]) -> float:
        logprob = sum(logprobs(text[:i])[text[i]] for i in range(len(text)))
        return logprob / len(text) ** length_penalty

    whole = [
        text
        for length in range(1, limit + 1)
        for text in itertools.product(range(3), repeat=length)
        if end not in text[:-1] and (text[-1] == end or length == limit)
    ]
    best = sorted(whole, key=score, reverse=True)
    assert [ended.end for ended in search.ended] == best
    assert [ended.score for ended in search.ended] == pytest.approx([score(t) for t in best])


@pytest.mark.slow
def test_texts_and_scores_are_those_of_transformers() -> None:
    ends = check("llama", make_engine(loaded("llama")), searches(PROMPTS[:2]))
    assert ends.keys() == {"eos", "stop", "length"}


@pytest.mark.parametrize("name", ["gemma2", "gpt2"])
def test_on_other_architectures(name: str) -> None:
    check(name, make_engine(loaded(name)), searches(PROMPTS[:1], "plain", "many ends"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.turn(4)
def test_on_every_architecture(name: str) -> None:
    check(name, make_engine(loaded(name)), searches(PROMPTS[:2], "plain", "at once", "many ends"))


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_however_they_are_computed(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among samples of the same prompts, with few rows and blocks, and preempted."""
    prepare, config = SETTINGS[setting]
    engine = make_engine(loaded("llama"), **config)
    prepare(engine, monkeypatch)
    few = config.get("max_sequences", 64) < 4
    found = searches(PROMPTS, *(("never", "one") if few else ("plain", "at once", "many ends")))
    drawn = SamplingParams(n=3, max_tokens=9)
    samples = [Request(1000 + i, p, drawn, range(3)) for i, p in enumerate(PROMPTS)]
    alone = run(make_engine(loaded("llama")), samples)
    rng = random.Random(0)
    ran = run(engine, rng.sample([*found, *samples], len(found) + len(samples)))
    check_texts("llama", ran, found)
    assert {key: drawn for key, drawn in ran.tokens.items() if key[0] >= 1000} == alone.tokens
    if setting == "preemption":
        assert engine.stats.preemptions > 0


def test_a_text_is_found_again_where_all_of_them_were_preempted() -> None:
    """Three times nobody keeps a row: what a search knows lies in its tokens alone."""
    engine = make_engine(loaded("llama"))
    requests = searches(PROMPTS[:1], "plain", "at once")
    found = {}
    engine.begin()
    engine.add(requests)
    for step in itertools.count():
        if not engine.has_work:
            break
        for completion in engine.step():
            found[completion.request.key, completion.sample] = completion
        if step in (6, 11, 20):
            engine.scheduler.preemption.preempt_all()
    engine.end()
    check_texts("llama", Ran(found, engine.stats), requests)
    assert engine.stats.preemptions > 6


def test_full_blocks_are_shared_by_beams() -> None:
    """Of four beams over ten blocks, far fewer than forty are in use."""
    params = BeamSearchParams(beam_width=4, max_tokens=40, ignore_eos=True)
    engine = make_engine(loaded("llama"))
    request = Request(1, PROMPTS[0], params.of_rows, range(4), beam=params)
    run(engine, [request])
    prompt = engine.pool.blocks_for(len(PROMPTS[0]))
    assert engine.stats.peak_blocks < prompt + 2 * 10


# -- while it runs ------------------------------------------------------------------------------


def begun(engine: CheckedEngine, *requests: Request, steps: int = 5) -> CheckedEngine:
    """A job, so many steps on."""
    engine.begin()
    engine.add(requests)
    for _ in range(steps):
        assert engine.step() == []
    return engine


def finished(engine: CheckedEngine) -> list[Completion]:
    """What comes out of the rest of the job, of which nothing stays."""
    found = []
    while engine.has_work:
        found += engine.step()
    engine.end()
    assert_empty(engine)
    return found


def test_a_cancelled_search_frees_its_beams() -> None:
    wide, plain = searches(PROMPTS[:1], "wide", "plain")
    engine = begun(make_engine(loaded("llama")), wide, plain)
    used = engine.pool.num_used
    assert engine.cancel(wide.key) == list(range(16))
    engine.scheduler.check_integrity()
    assert engine.pool.num_used <= used - 16
    assert engine.stats.cancelled == 16
    found = finished(engine)
    assert [(c.request.key, c.sample) for c in found] == [(plain.key, rank) for rank in range(4)]


def test_texts_that_are_cancelled_do_not_come_out() -> None:
    [plain] = searches(PROMPTS[:1], "plain")
    engine = begun(make_engine(loaded("llama")), plain)
    assert engine.cancel(plain.key, [1, 3]) == [1, 3]
    expected = generated("llama", tuple(PROMPTS[0]), SEARCHES["plain"])
    assert [c.token_ids for c in finished(engine)] == [expected[0][0], expected[2][0]]


def test_the_beams_of_a_search_that_runs() -> None:
    [plain] = searches(PROMPTS[:1], "plain")
    engine = begun(make_engine(loaded("llama")), plain)
    running = engine.running()
    assert running.keys() == {(plain.key, rank) for rank in range(4)}
    assert len({tuple(tokens) for tokens in running.values()}) == 4
    with pytest.raises(UsageError, match="is a beam search that runs"):
        engine.fork((plain.key, 0))
    finished(engine)


def test_a_text_that_was_found_is_forked_into_samples() -> None:
    [plain] = searches(PROMPTS[:1], "plain")
    engine = make_engine(loaded("llama"))
    forked = None
    for completion in engine.generate([plain]):
        if completion.request is plain and completion.sample == 0:
            with pytest.raises(UsageError, match="needs SamplingParams: give some"):
                engine.fork(completion)
            forked = engine.fork(completion, SamplingParams(temperature=0, max_tokens=3), tokens=2)
        if completion.request.key == forked:
            assert list(completion.request.prompt_token_ids[:-2]) == PROMPTS[0]
            break


def test_samples_that_are_wanted_no_more_are_searched_for_and_left_out() -> None:
    """As where a job is resumed: the best text is known already."""
    params = SEARCHES["plain"]
    request = Request(1, PROMPTS[0], params.of_rows, [1, 2], beam=params)
    expected = generated("llama", tuple(PROMPTS[0]), params)
    ran = run(make_engine(loaded("llama")), [request])
    assert [ran.completions[1, rank].token_ids for rank in (1, 2)] == [
        expected[1][0], expected[2][0],
    ]  # fmt: skip


def test_log_probabilities_of_the_tokens() -> None:
    params = replace(SEARCHES["plain"], logprobs=3)
    request = Request(1, PROMPTS[0], params.of_rows, range(4), beam=params)
    for completion in run(make_engine(loaded("llama")), [request]).completions.values():
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        assert all(len(entry.top) == 3 for entry in completion.logprobs)
        total = sum(entry.logprob for entry in completion.logprobs)
        assert total == pytest.approx(completion.cumulative_logprob)


# -- what cannot be -----------------------------------------------------------------------------


def refusal(params: BeamSearchParams, **config: int) -> str:
    """Why an engine does not take a search."""
    engine = make_engine(loaded("llama"), **config)
    request = Request(1, PROMPTS[0], params.of_rows, range(params.beam_width), beam=params)
    with pytest.raises((RequestError, CapacityError)) as caught:
        engine.check(request)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_beams_that_are_too_many() -> None:
    assert "vocabulary has 128 tokens" in refusal(BeamSearchParams(129, 5), max_sequences=200)
    assert "64 sequences decode together" in refusal(BeamSearchParams(65, 5))
    assert "60 beams need" in refusal(BeamSearchParams(60, 100))


def test_as_many_beams_as_tokens() -> None:
    """More than go on from the prompt: the rest of the rows follow nothing."""
    params = BeamSearchParams(128, 4)
    request = Request(1, PROMPTS[0], params.of_rows, range(128), beam=params)
    engine = make_engine(loaded("llama"), max_sequences=128, blocks=600)
    ran = run(engine, [request])
    texts = [completion.token_ids for completion in ran.completions.values()]
    assert len({tuple(text) for text in texts}) == 128
    scores = [ran.completions[1, rank].score or 0.0 for rank in range(128)]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"beam_width": 0}, "beam_width is 0"),
        ({"temperature": 0.7}, "draws nothing at random"),
        ({"early_stopping": "always"}, "early_stopping is 'always'"),
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": [""]}, "stop is"),
    ],
)
def test_params_out_of_range(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 3} | wrong)


def test_logits_that_are_no_distribution() -> None:
    """A beam that meets them ends the search; the others of the job go on."""
    model = load_model(make_tiny("llama"))
    bad = generated("llama", tuple(PROMPTS[0]), SEARCHES["plain"])[0][0][1]
    poison(model, bad)
    other = [token for token in PROMPTS[1] if token != bad]
    requests = searches([PROMPTS[0], other], "plain")
    ran = run(make_engine(model), requests)
    model.release()
    failed = [c for c in ran.completions.values() if c.request is requests[0]]
    assert len(failed) == 4
    assert {c.finish_reason for c in failed} == {"error"}
    assert all(c.error and "NaN or infinite" in c.error for c in failed)
