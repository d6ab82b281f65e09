"""Structured outputs through the engine: what ends parses, whatever else runs beside it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessor

from sharegen.common.grammar import prepared
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.batch import DecodeBatch
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.errors import RequestError
from tests.engine import structured
from tests.engine.core.test_batch import recording, said
from tests.engine.jobs import Ran, hope_for_the_best, loaded, make_engine, run
from tests.engine.structured import engine, parses, request, tokenizer
from tests.engine.tiny_models import TINY

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SAMPLED = SamplingParams(n=4, max_tokens=40)
GREEDY = SamplingParams(temperature=0, max_tokens=40)


def mixed() -> list[Request]:
    """Every kind, and requests without any beside them."""
    plain = SamplingParams(n=5, max_tokens=23, ignore_eos=True)
    return [
        request(1, SAMPLED, json=SCHEMA, disable_any_whitespace=True),
        request(2, plain),
        request(3, SAMPLED, regex="[ab]{3,9}c"),
        request(
            4, replace(SAMPLED, repetition_penalty=1.3, top_p=0.9), choice=["Tom", "日本", "60"]
        ),
        request(5, GREEDY, grammar='start: "(" start ")" | /[a-z]{1,5}/'),
        request(6, replace(plain, n=9), text="Question: A box holds 12 eggs"),
    ]


def assert_all_parse(ran: Ran) -> None:
    for completion in ran.completions.values():
        asked = completion.request.params.structured_outputs
        assert completion.finish_reason in ("eos", "length")
        if asked is not None and asked.grammar is None and completion.finish_reason == "eos":
            assert completion.text is not None and parses(completion.text, asked)


# -- every completion that ends parses ---------------------------------------------------------


def check_any(engine: Any, asked: list[StructuredOutputsParams], seed: int) -> None:
    params = SamplingParams(n=2, max_tokens=60, seed=seed, temperature=1.5)
    requests = [
        Request(i, structured.prompt(), replace(params, structured_outputs=each), range(2))
        for i, each in enumerate(asked)
    ]
    for each in requests:
        engine.check(each)
    ran = run(engine, requests)
    assert_all_parse(ran)
    for completion in ran.completions.values():
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == 60


_few = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
_many = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
_lists = st.lists(structured.asked, min_size=3, max_size=4)


@given(asked=_lists, seed=st.integers(0, 1000))
@_few
def test_every_completion_that_ends_parses(asked: list[StructuredOutputsParams], seed: int) -> None:
    check_any(engine(), asked, seed)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.turn(2)
@given(asked=_lists, seed=st.integers(0, 1000))
@_many
def test_every_one_of_many_parses(
    lag: int, asked: list[StructuredOutputsParams], seed: int
) -> None:
    check_any(engine(lag), asked, seed)


# -- the same samples, however they are computed -------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Ran:
    """Each request in an engine's job of its own."""
    one = engine()
    completions = {}
    for each in mixed():
        completions |= run(one, [each]).completions
    return Ran(completions, one.stats)


@pytest.mark.parametrize(
    ("lag", "config"),
    [
        (0, {}),
        (1, {}),
        # rows wait, some are preempted
        pytest.param(1, {"max_sequences": 8, "blocks": 30}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.turn(4)
def test_samples_do_not_hang_on_what_runs_beside_them(
    alone: Ran, lag: int, config: dict[str, Any]
) -> None:
    made = engine(lag, **config)
    if config:
        hope_for_the_best(made)
    ran = run(made, mixed())
    assert ran.results == alone.results
    assert_all_parse(ran)
    if config:
        assert ran.stats.preemptions > 0


def test_few_rows_with_grammars_sit_out_and_the_others_keep_their_pace() -> None:
    """Of a row that sits out every other step, the others notice nothing."""
    others = request(1, SamplingParams(n=8, max_tokens=40, ignore_eos=True))
    bound = request(2, SamplingParams(max_tokens=15), regex="[a-z]{60}")
    lagging = engine(1)
    ended: dict[int, int] = {}
    for completion in lagging.generate([others, bound]):
        ended.setdefault(completion.request.key, lagging.stats.decode_steps)
    assert ended[1] <= 40 + 1  # as without the other: a step a token, seen one late
    assert 2 * 14 - 1 <= ended[2] <= 2 * 14 + 1


@pytest.mark.slow
@pytest.mark.skipif("mamba2" not in TINY, reason="this transformers hands no states over")
@pytest.mark.parametrize("name", ["qwen3_next", "mamba2"])
def test_rows_that_sit_out_keep_their_recurrent_states(name: str) -> None:
    letters = structured.letters()
    prompt = letters.encode("Question: how many apples?")
    bound = SamplingParams(n=3, max_tokens=30, structured_outputs={"regex": "[a-f]{5,12}!"})
    requests = [
        Request(1, prompt, SamplingParams(max_tokens=25, ignore_eos=True), range(10)),
        Request(2, prompt, bound, range(3)),
        Request(3, prompt[:9], bound, range(2)),
    ]
    found = []
    for lag in (0, 1):
        made = make_engine(loaded(name), tokenizer=letters)
        made._lag = lag
        found.append(run(made, requests))
    assert found[0].results == found[1].results
    assert found[0].stats.decode_steps < found[1].stats.decode_steps


def test_where_most_rows_have_grammars_no_step_is_in_flight() -> None:
    bound = request(2, SamplingParams(n=3, max_tokens=20), regex="[a-z]{60}")
    lagging = engine(1)
    ran = run(lagging, [bound, request(1, SamplingParams(max_tokens=20, ignore_eos=True))])
    assert ran.stats.decode_steps <= 20


# -- the model's own choice among what is allowed -------------------------------------------------


class Matching(LogitsProcessor):
    """llguidance in transformers' generate, straight from the library."""

    def __init__(self, asked: StructuredOutputsParams, prompt: int) -> None:
        import llguidance.hf

        size = structured.original().config.vocab_size
        vocabulary = llguidance.hf.from_tokenizer(tokenizer(), n_vocab=size, eos_token=[2])
        self.matcher = llguidance.LLMatcher(vocabulary, prepared(asked))
        self.size, self.taken = size, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert self.matcher.consume_tokens(input_ids[0, self.taken :].tolist())
        self.taken = input_ids.shape[1]
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: self.size].astype(bool)
        return scores.masked_fill(~torch.from_numpy(allowed), -torch.inf)


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_greedy_tokens_are_those_of_generate(lag: int) -> None:
    requests = [
        request(1, GREEDY, json=SCHEMA),
        request(2, GREEDY, regex=r"\w+( \w+){3}\."),
        request(3, GREEDY, choice=["apples and eggs", "eggs"]),
    ]
    ran = run(engine(lag), requests)
    for each in requests:
        assert each.params.structured_outputs is not None
        ids = torch.tensor([each.prompt_token_ids])
        expected = structured.original().generate(
            ids, max_new_tokens=40, do_sample=False,
            logits_processor=[Matching(each.params.structured_outputs, ids.shape[1])],
        )  # fmt: skip
        assert ran.completions[each.key, 0].token_ids == expected[0, ids.shape[1] :].tolist()


def test_logprobs_are_those_of_the_distribution_without_a_mask() -> None:
    each = request(1, SamplingParams(max_tokens=40, logprobs=3, n=2), json=SCHEMA)
    for completion in engine().generate([each]):
        prompt = list(each.prompt_token_ids)
        ids = torch.tensor([prompt + completion.token_ids[:-1]])
        with torch.no_grad():
            logits = structured.original()(input_ids=ids).logits[0, len(prompt) - 1 :]
        own = logits.log_softmax(-1)
        drawn = own.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert completion.cumulative_logprob == pytest.approx(drawn.sum().item(), abs=1e-3)
        assert completion.logprobs is not None
        best = own[0].topk(3).indices.tolist()
        assert list(completion.logprobs[0].top) == best  # whatever the mask bars


# -- ends ------------------------------------------------------------------------------------------


def one(each: Request, **config: Any) -> Completion:
    made = engine(**config)
    made.check(each)
    [completion] = run(made, [each]).completions.values()
    return completion


def test_a_stop_token_ends_a_sample_where_its_text_is_complete() -> None:
    [comma] = tokenizer().encode(",", add_special_tokens=False)
    params = SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=[comma])
    completion = one(request(1, params, regex=r"a,b{2,3}"))
    # The comma of the text is barred, for it would end the sample where nothing is complete.
    assert completion.finish_reason == "error" and completion.token_ids
    completion = one(request(1, params, regex=r"ab{2,3}"))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", comma)
    assert completion.text in ("abb", "abbb")


def test_min_tokens_delays_the_end_as_far_as_the_grammar_has_room() -> None:
    params = SamplingParams(max_tokens=40, min_tokens=5)
    completion = one(request(1, params, regex="[a-z]{0,20}"))
    assert completion.finish_reason == "eos" and len(completion.token_ids) >= 6
    assert one(request(1, params, choice=["a"])).text == "a"


def test_a_sample_that_is_cut_ends_by_its_length() -> None:
    completion = one(request(1, SamplingParams(max_tokens=7), regex="[a-z]{100}"))
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 7)


def test_stop_strings_end_a_sample_wherever_they_occur() -> None:
    params = SamplingParams(max_tokens=40, stop=["bb"])
    completion = one(request(1, params, regex="aabbcc"))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", "bb")
    assert completion.text == "aa"


def test_what_else_bars_tokens_bars_them_too() -> None:
    digits = [
        t for text in "0123456789" for t in tokenizer().encode(text, add_special_tokens=False)
    ]
    allowed = SamplingParams(max_tokens=40, allowed_token_ids=[*digits[:2], 2])
    completion = one(request(1, allowed, regex="[0-9]{4}"))
    assert completion.finish_reason == "eos" and set(completion.text or "") <= {"0", "1"}
    none = SamplingParams(max_tokens=40, logit_bias=dict.fromkeys(range(3, 300), -torch.inf))
    completion = one(request(1, none, regex="[a-z]"))
    assert completion.finish_reason == "error"
    assert "no token that structured_outputs and logit_bias leave" in (completion.error or "")


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [0, 1])
def test_a_fork_goes_on_within_its_parents_text(lag: int) -> None:
    parent = replace(request(1, SamplingParams(max_tokens=40), regex="a{3}b{3}c{3}"), keep=True)
    made = engine(lag)
    texts: list[str] = []
    forked = None
    for completion in made.generate([parent]):
        assert completion.text is not None
        if forked is None:
            assert completion.text == "aaabbbccc"
            with pytest.raises(RequestError, match=r"is complete: fork fewer of its tokens"):
                made.fork(completion)
            before = tokenizer().decode(completion.token_ids[:4])
            forked = made.fork(completion, replace(parent.params, n=2), tokens=4)
            anew = StructuredOutputsParams(choice=["x"])
            made.fork(completion, replace(parent.params, structured_outputs=anew), tokens=4)
        elif completion.request.key == forked and completion.request.params.n == 2:
            texts.append(before + completion.text)
        else:
            assert completion.text == "x"
    assert texts == ["aaabbbccc"] * 2


# -- what is refused, and what fails ---------------------------------------------------------------


def test_what_cannot_be_served_is_refused_before_anything_runs() -> None:
    made = engine()
    for values, words in [
        ({"json": {"enum": []}}, "structured_outputs.json: Unsatisfiable schema: anyOf is empty"),
        ({"regex": "(a"}, "structured_outputs.regex: unclosed group"),
        ({"grammar": "start: x"}, 'structured_outputs.grammar: at 1(8): unknown name: "x"'),
    ]:
        with pytest.raises(RequestError) as error:
            made.check(request(1, **values))  # type: ignore[arg-type]
        assert words in str(error.value) and "\n" not in str(error.value)
    endless = SamplingParams(ignore_eos=True)
    with pytest.raises(RequestError, match="end with a token, and there is none"):
        made.check(request(1, endless, regex="a"))


def test_a_tokenizer_is_needed_and_a_fast_one() -> None:
    from sharegen.engine.grammar.grammars import Grammars
    from tests.engine.tokenizers_for_tests import python_bytes

    with pytest.raises(RequestError, match="structured_outputs need a tokenizer"):
        Grammars(None, [2], 384).check(request(1, regex="a"))
    with pytest.raises(RequestError, match="cannot use this tokenizer: Only fast tokenizers"):
        Grammars(python_bytes(), [1], 384).check(request(1, regex="a"))


def test_a_regex_that_explodes_on_the_way_fails_its_own_samples() -> None:
    """The library's limits are those of one text: what else runs does not notice."""
    params = SamplingParams(max_tokens=60)
    [a] = tokenizer().encode("a", add_special_tokens=False)
    only = replace(params, allowed_token_ids=[a, 2], min_tokens=60)
    explodes = request(1, only, regex="b{70}|((a{1,1000}){1,1000}){1,1000}")
    fine = [request(i, params, regex="a{20}") for i in (2, 3)]
    completions = run(engine(), [explodes, *fine]).completions
    assert completions[1, 0].finish_reason == "error"
    assert completions[1, 0].error == (
        "structured_outputs: lexer error: too many expressions constructed after "
        f"{len(completions[1, 0].token_ids)} tokens"
    )
    assert [completions[key, 0].text for key in (2, 3)] == ["a" * 20] * 2


@pytest.mark.slow
def test_batches_with_masks_run_again_elsewhere() -> None:
    """As on another rank: a batch says all that its step takes, rows that sit out included."""
    made = engine(1, max_sequences=40)
    written = recording(made)
    run(made, [*mixed(), request(7, SamplingParams(n=12, max_tokens=20, ignore_eos=True))])
    batches = [(pickle.loads(data), expected) for data, expected in written]
    assert any(len(batch.resting) for batch, _ in batches if isinstance(batch, DecodeBatch))
    runner = engine(1, max_sequences=40).runner
    for batch, expected in batches:
        assert repr(said(runner.run(batch))) == repr(expected)  # NaN where a row sits out
