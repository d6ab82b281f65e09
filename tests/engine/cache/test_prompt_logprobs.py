"""Log-probabilities of prompt tokens against the model's own forward, however prompts share."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from transformers import PreTrainedModel

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.batch import PrefillBatch
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.model.load import load_model
from tests.engine.jobs import (
    forest,
    hope_for_the_best,
    loaded,
    make_engine,
    original,
    random_tokens,
    requests_of,
    run,
)
from tests.engine.tiny_models import make_tiny

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, prompt_logprobs=4)


@torch.no_grad()
def assert_from_forward(completion: Completion, model: PreTrainedModel) -> None:
    """Every entry is what log_softmax of the model's own forward says."""
    prompt, top = (
        list(completion.request.prompt_token_ids),
        completion.request.params.prompt_logprobs,
    )
    entries = completion.prompt_logprobs
    if top is None:
        assert entries is None
        return
    assert entries is not None and entries[0] is None and len(entries) == len(prompt)
    expected = model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)
    for entry, token, row in zip(entries[1:], prompt[1:], expected, strict=False):
        assert entry is not None and entry.token_id == token
        assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert list(entry.top.values()) == pytest.approx(row.topk(top).values.tolist(), abs=1e-4)
        assert [row[best].item() for best in entry.top] == pytest.approx(
            list(entry.top.values()), abs=1e-4
        )


@pytest.mark.parametrize(
    ("prefill_tokens", "block_size", "name"),
    [
        # Token by token: windows of gemma2 in blocks of 4; the others have nothing to add to llama.
        *((1, *one) for one in [(1, "llama"), (4, "llama"), (4, "gemma2")]),
        *(
            pytest.param(1, *one, marks=pytest.mark.slow)
            for one in [(1, "gemma2"), (1, "gpt2"), (4, "gpt2")]
        ),
        *product([7, 512], [1, 4], ["llama", "gemma2", "gpt2"]),
    ],
)
@pytest.mark.turn(6)
def test_equal_to_the_models_own_forward(prefill_tokens: int, block_size: int, name: str) -> None:
    engine = make_engine(
        loaded(name), block_size=block_size, prefill_tokens=prefill_tokens, blocks=800
    )
    ran = run(engine, requests_of(forest(), PARAMS, samples=2))
    for completion in ran.completions.values():
        assert_from_forward(completion, original(name))
    tree = PrefixTree.build(forest(), block_size)
    assert ran.stats.prompt_tokens_computed == tree.num_tokens  # shared nodes are asked once


def test_only_of_the_tokens_that_are_asked_for() -> None:
    engine = make_engine(loaded("llama"), block_size=2, prefill_tokens=7, blocks=200)
    rng = random.Random(3)
    whole = requests_of(forest(), PARAMS, samples=1)
    starts = [rng.randint(1, len(request.prompt_token_ids)) for request in whole]
    some = [replace(r, logprobs_from=start) for r, start in zip(whole, starts, strict=True)]
    told = run(make_engine(loaded("llama"), blocks=200), whole).completions
    for key, completion in run(engine, some).completions.items():
        start, entries = completion.request.logprobs_from, completion.prompt_logprobs
        expected = told[key].prompt_logprobs
        assert entries is not None and expected is not None and len(entries) == len(expected)
        assert entries[:start] == [None] * start
        for entry, other in zip(entries[start:], expected[start:], strict=True):
            assert entry is not None and other is not None
            assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert list(entry.top) == list(other.top)


def test_what_nobody_asks_for_costs_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(loaded("llama"), blocks=200)
    rows: list[int] = []
    prefill = engine.runner.prefill

    def counted(batch: PrefillBatch) -> Drawn:
        rows.append(0 if batch.logprobs is None else len(batch.logprobs.rows))
        return prefill(batch)

    monkeypatch.setattr(engine.runner, "prefill", counted)
    shared = random_tokens(40, random.Random(5))
    prompts = [[*shared, choice, 7] for choice in (1, 2, 3)]
    requests = [replace(r, logprobs_from=40) for r in requests_of(prompts, PARAMS, samples=1)]
    run(engine, requests)
    assert sum(rows) == 3 + 3  # the choices' first tokens, after what is shared, and their second


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.parametrize("lag", [0, 1])
def test_mixed_with_requests_that_want_other_numbers_or_none(lag: int) -> None:
    engine = make_engine(loaded("llama"), blocks=45, max_sequences=5)
    engine._lag = lag
    tops = [0, None, 2, 7, None, 200]
    requests = [
        Request(i, prompt, replace(PARAMS, prompt_logprobs=tops[i % 6]), range(2))
        for i, prompt in enumerate(forest())
    ]
    ran = run(engine, requests)
    for completion in ran.completions.values():
        if completion.request.params.prompt_logprobs == 200:  # the whole vocabulary of 128
            assert completion.prompt_logprobs is not None
            assert all(len(e.top) == 128 for e in completion.prompt_logprobs[1:] if e is not None)
            completion = replace(
                completion,
                request=replace(completion.request, params=replace(PARAMS, prompt_logprobs=128)),
            )
        assert_from_forward(completion, original("llama"))


def test_tokens_do_not_depend_on_it() -> None:
    plain = run(
        make_engine(loaded("llama")), requests_of(forest(), replace(PARAMS, prompt_logprobs=None))
    )
    asked = run(make_engine(loaded("llama")), requests_of(forest(), PARAMS))
    assert plain.results == asked.results


@pytest.mark.slow
def test_prompts_prefilled_ahead_and_dropped() -> None:
    """Blocks run out, nodes that were asked go and are prefilled again."""
    engine = make_engine(loaded("llama"), blocks=30, max_sequences=7)
    engine.scheduler.prefill.ahead_tokens = 200
    hope_for_the_best(engine)
    params = replace(PARAMS, max_tokens=20)
    ran = run(engine, requests_of(forest(), params, samples=3))
    assert ran.stats.preemptions > 0
    for completion in ran.completions.values():
        assert_from_forward(completion, original("llama"))


SHOTS = random_tokens(40, random.Random(7))


def test_requests_that_come_late_share_what_was_asked() -> None:
    """Equal continuations are known on the node; others compute the shots once more."""
    prompts = [[*SHOTS, 50 + i % 3, 60 + i] for i in range(12)]
    engine = make_engine(loaded("llama"), max_sequences=2, lookahead=2)
    completions = list(engine.generate(requests_of(prompts, PARAMS)))
    assert len(completions) == 12
    for completion in completions:
        assert_from_forward(completion, original("llama"))


@pytest.mark.turn(2)
@pytest.mark.parametrize("order", [[None, 3], [3, None], [1, 5], [5, 1]])
def test_requests_that_come_late_and_want_more(order: list[int | None]) -> None:
    requests = [
        Request(i, [*SHOTS, 50, 60 + i], replace(PARAMS, prompt_logprobs=order[i // 6]), range(1))
        for i in range(12)
    ]
    engine = make_engine(loaded("llama"), max_sequences=2, lookahead=2)
    completions = list(engine.generate(requests))
    assert len(completions) == 12
    for completion in completions:
        assert_from_forward(completion, original("llama"))
    assert engine.stats.prompt_tokens_computed < engine.stats.prompt_tokens_asked


def test_a_prompt_of_one_token() -> None:
    ran = run(make_engine(loaded("llama")), requests_of([[5]], PARAMS))
    assert ran.completions[0, 0].prompt_logprobs == [None]


def test_bfloat16() -> None:
    engine = make_engine(load_model(make_tiny("llama").bfloat16(), dtype="bfloat16"))
    ran = run(engine, requests_of([SHOTS], PARAMS))
    entries = ran.completions[0, 0].prompt_logprobs
    assert entries is not None and len(entries) == 40
    assert all(entry is not None and entry.logprob <= 0 for entry in entries[1:])
