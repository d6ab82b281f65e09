"""Lists of tokens that alone may be drawn: kept a bit each, moved with their rows, refused where
nothing would be left."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.sample.allowed import AllowedTokens
from sharegen.engine.sample.state import SamplingState
from sharegen.errors import RequestError, UsageError
from sharegen.kernels.transfer import send
from tests.engine.jobs import VOCAB_SIZE, forest, loaded, make_engine, run

EOS = (1, 2)


@pytest.mark.parametrize("vocab_size", [1, 8, 37, 1000])
def test_rows_keep_their_lists_wherever_they_go(vocab_size: int) -> None:
    rng = random.Random(vocab_size)
    kept = AllowedTokens(9, vocab_size, partial(send, torch.device("cpu")))
    kept.set_rows([0, 4], [None, None])
    assert kept.bits is None  # nothing to keep
    now: list[list[int] | None] = [None] * 9
    for _ in range(30):
        rows = rng.sample(range(9), rng.randint(1, 9))
        lists = [
            rng.sample(range(vocab_size), rng.randint(1, vocab_size))
            if rng.random() < 0.6
            else None
            for _ in rows
        ]
        kept.set_rows(rows, lists)
        for row, tokens in zip(rows, lists, strict=True):
            now[row] = tokens
        source, target = rng.sample(range(9), 2)
        kept.move_rows(torch.tensor([source]), torch.tensor([target]))
        now[target] = now[source]
    rows = torch.tensor([8, 0, 3])
    logits = torch.randn(3, vocab_size, dtype=torch.bfloat16)
    found = kept.apply(logits, rows)
    for row, before, after in zip(rows.tolist(), logits, found, strict=True):
        listed = now[row]
        left = range(vocab_size) if listed is None else sorted(listed)
        assert after.isfinite().nonzero().flatten().tolist() == list(left)
        assert torch.equal(after[list(left)], before.float()[list(left)])


def test_samples_draw_from_their_lists_alone() -> None:
    """Each request from its own, beside others without one, in few rows that move."""
    rng = random.Random(0)
    params = SamplingParams(temperature=1.5, max_tokens=14, ignore_eos=True)
    lists = [rng.sample(range(3, VOCAB_SIZE), k) if k else None for k in (1, 0, 2, 40, 0, 125)]
    requests = [
        Request(i, prompt, replace(params, allowed_token_ids=lists[i % 6]), range(2))
        for i, prompt in enumerate(forest()[:6])
    ]
    found = run(make_engine(loaded("llama")), requests)
    assert run(make_engine(loaded("llama"), max_sequences=5), requests).tokens == found.tokens
    for (key, _), completion in found.completions.items():
        listed = lists[key % 6]
        assert listed is None or set(completion.token_ids) <= set(listed)
        assert math.isfinite(completion.cumulative_logprob)
    free = {
        key: replace(request.params, allowed_token_ids=None) for key, request in enumerate(requests)
    }
    without = run(make_engine(loaded("llama")), [replace(r, params=free[r.key]) for r in requests])
    alike = [key for key in found.tokens if lists[key[0] % 6] is None]
    assert alike and all(found.tokens[key] == without.tokens[key] for key in alike)


@pytest.mark.parametrize("values", [[], [-1], ["a"], [1.5], 7, "12", [True]], ids=str)
def test_what_is_no_list_of_tokens(values: object) -> None:
    with pytest.raises(
        UsageError, match=r"allowed_token_ids is .*: it must be a list of token ids"
    ):
        SamplingParams(allowed_token_ids=values)  # type: ignore[arg-type]


def test_tokens_that_the_model_does_not_have() -> None:
    state = SamplingState(1, 50, eos_token_ids=EOS)
    state.check(SamplingParams(allowed_token_ids=[0, 49]))
    with pytest.raises(RequestError, match=r"allowed_token_ids names token 50: .* ids 0 to 49"):
        state.check(SamplingParams(allowed_token_ids=[0, 50]))


@pytest.mark.parametrize(
    "values",
    [
        {"allowed_token_ids": [5, 6], "logit_bias": {5: -math.inf, 6: -math.inf, 7: 1.0}},
        {"allowed_token_ids": [1, 2], "min_tokens": 1},
    ],
    ids=["biases", "ends"],
)
def test_where_no_first_token_is_left(values: dict) -> None:
    state = SamplingState(1, 50, eos_token_ids=EOS)
    with pytest.raises(RequestError, match="min_tokens bar all allowed_token_ids: there is no"):
        state.check(SamplingParams(**values))
    one_more = [*values["allowed_token_ids"], 9]
    state.check(SamplingParams(**values | {"allowed_token_ids": one_more}))


def test_a_sample_fails_where_no_later_token_is_left() -> None:
    """A bad word of two tokens bars the only one that is allowed after the first."""

    class Spelled:
        """Writes every word as the same two tokens."""

        all_special_ids = ()

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [40, 40]

        def decode(self, tokens: list[int], **options: bool) -> str:
            return " ".join(map(str, tokens))

    params = SamplingParams(allowed_token_ids=[40], bad_words=["no"], max_tokens=5, ignore_eos=True)
    engine = make_engine(loaded("llama"), tokenizer=Spelled())
    [completion] = engine.generate([Request(0, [5, 6], params, range(1))])
    assert (completion.finish_reason, completion.token_ids) == ("error", [40])
    assert str(completion.error).endswith(
        "after 1 tokens, or there is no token that allowed_token_ids and bad_words leave"
    )
