"""Logits that are no distribution end their own sample, and touch no other one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.model.load import load_model
from tests.engine.jobs import make_engine, poison, random_tokens, requests_of
from tests.engine.tiny_models import make_tiny

BAD = 127
"""A token that no other prompt holds and that `poisoned` models turn into NaN."""

RANDOM = SamplingParams(
    temperature=1.0, top_p=0.9, top_k=40, max_tokens=12, ignore_eos=True, logit_bias={BAD: -1e30}
)
PARAMS = {
    "greedy": replace(RANDOM, temperature=0.0),
    "random": RANDOM,
    "logprobs": replace(RANDOM, logprobs=3, prompt_logprobs=1, repetition_penalty=1.2),
}


def drawn(completions: Iterator[Completion]) -> dict[tuple[int, int], tuple[Any, ...]]:
    return {
        (c.request.key, c.sample): (c.token_ids, c.cumulative_logprob, c.finish_reason)
        for c in completions
    }


def prompts_with(bad: list[int] | None) -> list[list[int]]:
    """Prompts below two roots; `bad` replaces the tail of one of them."""
    rng = random.Random(3)
    roots = [random_tokens(18, rng), random_tokens(9, rng)]
    prompts = [root + random_tokens(rng.randint(5, 9), rng) for root in roots for _ in range(4)]
    prompts = [[min(token, BAD - 1) for token in prompt] for prompt in prompts]
    if bad is not None:
        prompts[2] = [*roots[0], *bad]
    return prompts


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((torch.nan, name) for name in ("llama", "mistral", "gpt2")),
        (torch.inf, "llama"),
        *(pytest.param(torch.inf, name, marks=pytest.mark.slow) for name in ("mistral", "gpt2")),
    ],
)
@pytest.mark.turn(10)
def test_one_prompt_fails_and_the_others_are_as_without_it(
    name: str, params: SamplingParams, value: float
) -> None:
    """Few blocks, so that those of the failed prompt have other owners soon."""
    found = []
    for bad in (None, [BAD, 7, 8]):
        model = load_model(make_tiny(name))
        poison(model, BAD, value)
        engine = make_engine(model, blocks=60, max_sequences=6)
        found.append(drawn(engine.generate(requests_of(prompts_with(bad), params, 3))))
        model.release()
    without, with_it = found
    failed = [key for key, (_, _, reason) in with_it.items() if reason == "error"]
    assert sorted(failed) == [(2, 0), (2, 1), (2, 2)]
    assert all(with_it[key] == ([], 0.0, "error") for key in failed)
    assert {k: v for k, v in with_it.items() if k[0] != 2} == {
        k: v for k, v in without.items() if k[0] != 2
    }


@pytest.mark.parametrize("samples", [3, pytest.param(6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss", "deepseek_v3"])
@pytest.mark.turn(5)
@pytest.mark.slow
def test_a_sample_fails_where_its_own_token_does(name: str, samples: int) -> None:
    """Its tokens until then are those of the whole model; freed blocks harm nobody."""
    params = replace(RANDOM, temperature=1.5, top_k=0, top_p=1.0, max_tokens=30, logit_bias=None)
    found = []
    for poisoned in (False, True):
        model = load_model(make_tiny(name))
        if poisoned:
            poison(model, BAD)
        engine = make_engine(model, blocks=70, max_sequences=16)
        found.append(drawn(engine.generate(requests_of(prompts_with(None), params, samples))))
        model.release()
    whole, broken = found
    failed = 0
    for key, (tokens, logprob, reason) in whole.items():
        if BAD in tokens[:-1]:
            until = tokens[: tokens.index(BAD) + 1]
            assert broken[key][0] == until and broken[key][2] == "error"
            failed += 1
        else:
            assert broken[key] == (tokens, logprob, reason)
    assert 0 < failed < len(whole)


def test_a_failed_sample_says_so_and_has_no_text() -> None:
    model = load_model(make_tiny("llama"))
    poison(model, BAD)
    engine = make_engine(model)
    [completion] = engine.generate([Request(0, [5, BAD], RANDOM, range(1))])
    assert completion.finish_reason == "error" and completion.token_ids == []
    assert completion.error == "the model's logits are NaN or infinite after 0 tokens"
    assert engine.stats.completions == 1 and engine.stats.generated_tokens == 0
    model.release()


def test_barred_tokens_are_no_failure() -> None:
    """Logits of -inf are legitimate, as long as one is left."""
    model = load_model(make_tiny("llama"))
    barred = {token: -float("inf") for token in range(127)}
    for bias, reason in ((barred, "length"), (barred | {127: -float("inf")}, "error")):
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature, max_tokens=3, ignore_eos=True, logit_bias=bias
            )
            completions = make_engine(model).generate([Request(0, [5, 6], params, range(2))])
            assert [c.finish_reason for c in completions] == [reason] * 2
    model.release()
