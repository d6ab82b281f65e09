"""The engine as its users see it: random jobs, ends, refusals, and what survives a failure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.batch import DecodeBatch
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.padding import graph_rows, padded_rows
from sharegen.engine.model.load import load_model
from sharegen.engine.schedule.step import PrefillStep, Step
from sharegen.engine.text.detokenize import completion_text
from sharegen.errors import CapacityError, RequestError, UsageError
from tests.engine.jobs import (
    CONTEXT,
    GREEDY,
    CheckedEngine,
    Result,
    assert_empty,
    forest,
    judge,
    loaded,
    make_engine,
    original,
    requests_of,
    run,
)
from tests.engine.random_jobs import RandomJob, jobs
from tests.engine.tiny_models import make_tiny, tiny_config
from tests.engine.tokenizers_for_tests import byte_level, sentence_piece

SAMPLED = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
PROMPT = forest()[0]


# -- whole jobs ---------------------------------------------------------------------------------


def check_random_job(job: RandomJob, name: str) -> None:
    ran = run(job.engine(loaded(name)), job.requests)
    for completion in ran.completions.values():
        judge(completion, name)
    job.check_counts(ran.stats)


@pytest.mark.turn(4)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.sampled_from(["llama", "mistral"]))
def test_every_token_of_a_random_job_is_the_reference_s(job: RandomJob, name: str) -> None:
    check_random_job(job, name)


@pytest.mark.slow
@pytest.mark.turn(10)
@pytest.mark.timeout(900)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    jobs(max_tokens=40),
    st.sampled_from(["llama", "qwen2", "mistral", "gemma2", "phi3", "gpt_neox", "gpt2", "gpt_oss",
                     "llama4", "deepseek_v3"]),
)  # fmt: skip
def test_many_more_random_jobs_of_many_architectures(job: RandomJob, name: str) -> None:
    check_random_job(job, name)


def test_sampled_tokens_follow_the_softmax() -> None:
    """Chi-square over the first two tokens of 4,000 samples, through the whole engine."""
    params = SamplingParams(temperature=1.5, max_tokens=2, ignore_eos=True)
    count = 4_000
    request = Request(0, PROMPT, params, range(count))
    ran = run(make_engine(loaded("llama"), max_sequences=256, blocks=600), [request])
    with torch.no_grad():
        logits = original("llama")(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    first = (logits.double() / 1.5).softmax(-1)
    drawn = Counter(tokens[0] for tokens in ran.tokens.values())
    assert_fits(drawn, first)
    # The second token, below the first token that was drawn most often.
    most, times = drawn.most_common(1)[0]
    with torch.no_grad():
        logits = original("llama")(input_ids=torch.tensor([[*PROMPT, most]])).logits[0, -1]
    second = (logits.double() / 1.5).softmax(-1)
    assert times > 200
    assert_fits(Counter(t[1] for t in ran.tokens.values() if t[0] == most), second)


def assert_fits(drawn: Counter[int], probabilities: torch.Tensor) -> None:
    """The counts are no further from the probabilities than in 9,999 of 10,000 cases.

    Tokens that are expected fewer than five times are one class. The quantile of chi-square is
    Wilson and Hilferty's, good to a percent.
    """
    count = drawn.total()
    expected = (probabilities * count).tolist()
    classes = [token for token, times in enumerate(expected) if times >= 5]
    pairs = [(drawn[token], expected[token]) for token in classes]
    rest = count - sum(times for times, _ in pairs)
    pairs.append((rest, count - sum(times for _, times in pairs)))
    distance = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    freedom = len(pairs) - 1
    assert freedom > 3
    spread = 2 / (9 * freedom)
    assert distance < freedom * (1 - spread + 3.719 * math.sqrt(spread)) ** 3


# -- shapes of requests -------------------------------------------------------------------------


def test_no_requests() -> None:
    engine = make_engine(loaded("llama"))
    assert list(engine.generate([])) == []
    assert engine.stats.decode_steps == engine.stats.prefill_steps == 0


def test_requests_without_samples_cost_nothing() -> None:
    requests = requests_of(forest(), SAMPLED, samples=0)
    engine = make_engine(loaded("llama"))
    assert run(engine, requests).completions == {}
    assert engine.stats.prompt_tokens_computed == engine.stats.prompt_tokens_asked == 0


def test_requests_without_samples_decide_where_the_tree_splits() -> None:
    """They stand in no queue and take no blocks; but what they share with others is split, so that
    the arithmetic of the others is that of the whole job: the last block of 21 tokens is cut."""
    prompts = [PROMPT[:21] + [9] * 11, PROMPT[:21] + [8] * 11]
    requests = requests_of(prompts, SAMPLED, samples=1)
    requests[1] = replace(requests[1], samples=())
    engine = make_engine(loaded("llama"))
    run(engine, requests)
    assert engine.stats.prompt_tokens_computed == engine.stats.prompt_tokens_asked == 32
    assert engine.stats.peak_blocks == 6 + 3 + 3  # 32 tokens in one piece would be 8


def test_samples_may_be_any_of_a_request_s() -> None:
    whole = run(make_engine(loaded("llama")), requests_of([PROMPT], SAMPLED, samples=9)).results
    some = run(make_engine(loaded("llama")), [Request(0, PROMPT, SAMPLED, (7, 2, 4))]).results
    assert some == {key: whole[key] for key in [(0, 7), (0, 2), (0, 4)]}


def test_one_token() -> None:
    params = replace(SAMPLED, max_tokens=1)
    ran = run(make_engine(loaded("llama")), requests_of([PROMPT, PROMPT[:5]], params, samples=3))
    for completion in ran.completions.values():
        assert (len(completion.token_ids), completion.finish_reason) == (1, "length")
        judge(completion, "llama")
    assert ran.stats.decode_steps == 0 and ran.stats.generated_tokens == 6


def test_a_prompt_at_the_context_limit() -> None:
    for room in (1, 2, 5):
        prompt = (forest()[0] * 20)[: CONTEXT - room]
        ran = run(make_engine(loaded("llama")), requests_of([prompt], SAMPLED, samples=2))
        for completion in ran.completions.values():
            assert (len(completion.token_ids), completion.finish_reason) == (room, "context")
            judge(completion, "llama")


def test_without_max_tokens_a_sample_takes_what_the_context_has_left() -> None:
    """It begins as a shorter one does, for the limit is no part of the draws."""
    prompts = [(forest()[0] * 20)[: CONTEXT - room] for room in (3, 40)]
    endless = run(
        make_engine(loaded("llama")), requests_of(prompts, replace(SAMPLED, max_tokens=None))
    ).completions
    for index, room in enumerate((3, 40)):
        completion = endless[index, 0]
        assert (len(completion.token_ids), completion.finish_reason) == (room, "context")
    short = run(make_engine(loaded("llama")), requests_of(prompts[1:], SAMPLED)).completions[0, 0]
    tokens = endless[1, 0].token_ids
    assert SAMPLED.max_tokens is not None and SAMPLED.seed is None
    assert len(short.token_ids) == SAMPLED.max_tokens < len(tokens)
    told = "max_tokens is 0: it must be a whole number of at least 1, or None"
    with pytest.raises(UsageError, match=told):
        replace(SAMPLED, max_tokens=0)
    assert replace(SAMPLED, max_tokens=None, min_tokens=30).min_tokens == 30


def test_max_tokens_that_just_fit_the_context_end_by_length() -> None:
    prompt = (forest()[0] * 20)[: CONTEXT - 4]
    params = replace(SAMPLED, max_tokens=4)
    [completion] = run(
        make_engine(loaded("llama")), requests_of([prompt], params)
    ).completions.values()
    assert (len(completion.token_ids), completion.finish_reason) == (4, "length")


# -- ends ---------------------------------------------------------------------------------------


@pytest.fixture
def greedy_output() -> list[int]:
    return run(make_engine(loaded("llama")), requests_of([PROMPT], GREEDY)).tokens[0, 0]


@pytest.mark.parametrize("place", [0, 1, 7, 11])
def test_eos_ends_a_sample(greedy_output: list[int], place: int) -> None:
    """A list of EOS ids, one of which comes first, in the middle or last."""
    eos = greedy_output[place]
    model = make_tiny("llama")
    model.generation_config.eos_token_id = [125, eos]
    ours = load_model(model)
    end = greedy_output.index(eos) + 1
    ran = run(make_engine(ours), requests_of([PROMPT], replace(GREEDY, ignore_eos=False)))
    completion = ran.completions[0, 0]
    assert completion.token_ids == greedy_output[:end]
    assert (completion.finish_reason, completion.stop_reason) == ("eos", None)
    judged = replace(completion.request.params, ignore_eos=True)
    ignoring = run(make_engine(ours), requests_of([PROMPT], judged)).completions[0, 0]
    assert (ignoring.token_ids, ignoring.finish_reason) == (greedy_output, "length")
    ours.release()


@pytest.mark.parametrize("place", [0, 5])
def test_stop_token_ids_end_a_sample_even_where_eos_is_ignored(
    greedy_output: list[int], place: int
) -> None:
    stop = greedy_output[place]
    params = replace(GREEDY, stop_token_ids=[stop, 125])
    completion = run(make_engine(loaded("llama")), requests_of([PROMPT], params)).completions[0, 0]
    assert completion.token_ids == greedy_output[: greedy_output.index(stop) + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


@pytest.fixture(params=[byte_level, sentence_piece], ids=["byte level", "sentence piece"])
def speaking(request: pytest.FixtureRequest) -> Iterator[CheckedEngine]:
    """An engine with a tokenizer, and a model of as many tokens."""
    tokenizer = request.param()
    config = tiny_config("llama")
    config.vocab_size = len(tokenizer)
    torch.manual_seed(0)
    model = load_model(LlamaForCausalLM._from_config(config, attn_implementation="eager").eval())
    yield make_engine(model, tokenizer=tokenizer, max_sequences=5)
    model.release()


def text_until(tokenizer: Any, prompt: list[int], tokens: list[int], stop: str) -> tuple[str, int]:
    """What is left of a text that is stopped, and after how many tokens: the long way."""
    for count in range(1, len(tokens) + 1):
        text = completion_text(tokenizer, prompt, tokens[:count])
        if stop in text:
            return text[: text.index(stop)], count
    raise AssertionError("the stop never comes")


@pytest.mark.turn(2)
@pytest.mark.slow
def test_stop_strings_end_a_sample_in_the_middle_of_tokens(speaking: CheckedEngine) -> None:
    """Every stop that a text could have had: it ends there, at the first token that completes it,
    in whatever tokens the stop begins and ends; and other samples don't notice."""
    tokenizer = speaking.tokenizer
    prompt = tokenizer.encode("Janet has 3 ducks. How many", add_special_tokens=False)
    params = SamplingParams(temperature=1.0, max_tokens=25, ignore_eos=True)
    whole = run(speaking, requests_of([prompt], params, samples=4)).completions
    across = 0
    for (_, sample), completion in whole.items():
        text = completion.text
        assert text == completion_text(tokenizer, prompt, completion.token_ids)
        pieces = {tokenizer.decode([token]) for token in completion.token_ids}
        for start, length in product(range(0, len(text) - 4, 3), (1, 2, 4)):
            stop = text[start : start + length]
            if "\N{REPLACEMENT CHARACTER}" in stop:
                continue
            stopping = replace(params, stop=["never there", stop])
            ran = run(speaking, [Request(0, prompt, stopping, [sample])]).completions[0, sample]
            cut, count = text_until(tokenizer, prompt, completion.token_ids, stop)
            assert (ran.text, ran.token_ids) == (cut, completion.token_ids[:count])
            assert (ran.finish_reason, ran.stop_reason) == ("stop", stop)
            across += not any(stop in piece for piece in pieces)
    assert across > 5


@pytest.mark.turn(2)
@pytest.mark.slow
def test_stop_strings_of_many_samples_at_once(speaking: CheckedEngine) -> None:
    tokenizer = speaking.tokenizer
    prompt = tokenizer.encode("Janet has 3 ducks. How many", add_special_tokens=False)
    params = SamplingParams(
        temperature=1.0, max_tokens=30, ignore_eos=True, stop=["e", "12", "n\n"]
    )
    free = replace(params, stop=())
    whole = run(speaking, requests_of([prompt] * 3, free, samples=20)).completions
    ran = run(speaking, requests_of([prompt] * 3, params, samples=20)).completions
    stopped = 0
    for key, completion in ran.items():
        tokens = whole[key].token_ids
        assert completion.token_ids == tokens[: len(completion.token_ids)]
        if completion.finish_reason == "stop":
            cut, count = text_until(tokenizer, prompt, tokens, str(completion.stop_reason))
            assert (completion.text, len(completion.token_ids)) == (cut, count)
            stopped += 1
        else:
            assert completion.text == whole[key].text and len(tokens) == 30
            assert not any(stop in str(completion.text) for stop in params.stop)
    assert stopped > 5


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert (
        run(make_engine(loaded("llama")), requests_of([PROMPT], GREEDY)).completions[0, 0].text
        is None
    )


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field", ["max_sequences", "kv_cache_memory", "block_size", "prefill_tokens"]
)
@pytest.mark.parametrize("value", [0, -3])
def test_sizes_must_be_above_zero(field: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"{field} is {value}: it must be a whole number"):
        EngineConfig(**{field: value})


def test_memory_for_less_than_two_blocks() -> None:
    memory = 2 * 16 * loaded("llama").kv_bytes_per_token - 1
    with pytest.raises(CapacityError, match="does not even hold two blocks"):
        Engine(loaded("llama"), None, EngineConfig(kv_cache_memory=memory))


# -- what survives ------------------------------------------------------------------------------


def test_a_bad_request_among_good_ones_leaves_nothing() -> None:
    requests = [*requests_of(forest(), SAMPLED, samples=2), Request(99, [], SAMPLED, range(1))]
    engine = make_engine(loaded("llama"))
    with pytest.raises(RequestError, match="empty"):
        list(engine.generate(requests))
    assert_empty(engine)


def test_an_error_in_the_source_of_requests_leaves_nothing() -> None:
    def source() -> Iterator[Request]:
        yield from requests_of(forest()[:6], SAMPLED, samples=2)
        raise OSError("the file went away")

    engine = make_engine(loaded("llama"), lookahead=4)
    with pytest.raises(OSError, match="went away"):
        list(engine.generate(source()))
    assert_empty(engine)


@cache
def ragged_results() -> dict[tuple[int, int], Result]:
    return run(make_engine(loaded("llama"), max_sequences=33), ragged()).results


def ragged() -> list[Request]:
    """Samples that end at their own time."""
    return requests_of(forest(), replace(SAMPLED, stop_token_ids=range(3, 128, 9)), samples=3)


@pytest.mark.turn(4)
@pytest.mark.parametrize(
    "steps", [(0, 5), pytest.param((1, 2, 3, 8, 13, 21), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("method", ["forward", "decode", "prefill", "_apply"])
def test_an_error_inside_a_step_leaves_an_exact_engine(
    method: str, steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step fails, and wherever in it: the next job is as in a fresh engine."""
    requests, expected = ragged(), ragged_results()
    engine = make_engine(loaded("llama"), max_sequences=33)
    owner = engine.model if method == "forward" else engine.runner
    whole: Callable = getattr(owner, method)
    for failing in steps:
        calls = 0

        def interrupted(*arguments: object, failing: int = failing, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls > failing:
                raise KeyboardInterrupt
            return whole(*arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(owner, method, interrupted)
            try:
                list(engine.generate(requests))
            except KeyboardInterrupt:
                assert_empty(engine)
        assert run(engine, requests).results == expected
    assert calls > 3


@pytest.mark.turn(4)
def test_an_error_while_rows_move_leaves_no_row_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that had been moved on the host alone must not go on writing where they wrote."""
    params = replace(SAMPLED, max_tokens=40, stop_token_ids=range(3, 128, 9))
    requests = requests_of([PROMPT, PROMPT[:9]], params, samples=32)
    fewer = requests_of([PROMPT, PROMPT[:9]], params, samples=9)
    expected = run(make_engine(loaded("llama")), fewer).results
    engine = make_engine(loaded("llama"))
    apply = engine.runner._apply

    def interrupted(batch: DecodeBatch) -> None:
        if len(batch.moves):
            raise KeyboardInterrupt
        apply(batch)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine.runner, "_apply", interrupted)
        list(engine.generate(requests))
    assert (engine.runner.position[18:] >= 0).any(), "nothing was left on the device"
    assert run(engine, fewer).results == expected
    assert (engine.runner.position[18:] == -1).all()


@pytest.mark.turn(4)
def test_one_job_at_a_time() -> None:
    """A second call would take the first one's rows; it is refused, and the first goes on."""
    requests = requests_of(forest(), GREEDY)
    engine = make_engine(loaded("llama"), max_sequences=4)
    first = engine.generate(requests)
    done = [next(first)]
    with pytest.raises(UsageError, match="one job at a time"):
        next(engine.generate(requests))
    done += first
    assert len(done) == len(requests)
    assert len(list(engine.generate(requests))) == len(requests)


@pytest.mark.parametrize("padded", [padded_rows, graph_rows])
def test_prefill_runs_ahead_of_the_host(
    padded: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a GPU a batch is launched while the one before runs, also after an earlier job."""
    engine = make_engine(loaded("llama"), prefill_tokens=16)
    engine.scheduler.rows.padded = padded
    engine._lag = 1
    in_flight: list[int] = []
    launch = engine._run

    def watched(step: Step) -> bool:
        if isinstance(step, PrefillStep):
            in_flight.append(len(engine._in_flight))
        return launch(step)

    monkeypatch.setattr(engine, "_run", watched)
    for _ in range(2):
        in_flight.clear()
        run(engine, requests_of([[token] * 16 for token in range(3, 12)], SAMPLED))
        assert in_flight == [0] + [1] * 8
