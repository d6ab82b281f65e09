"""What the Python API hands out: vLLM's fields, short to look at, plain enough for JSON."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams, TokenLogprobs
from sharegen.errors import UsageError
from sharegen.outputs import CompletionOutput, Logprob, RequestOutput, mappings

PROMPT = range(1000, 1400)
"""Token ids that are not a list, as a job's may be."""

NOTED = [
    TokenLogprobs(7, -0.5, {7: -0.5, 8: -1.0}, rank=1),
    TokenLogprobs(9, -4.0, {7: -0.25, 8: -1.5}, rank=31),
    TokenLogprobs(8, -2.0, {}, rank=3),
]


class Tokenizer:
    """Writes a token as its number, and counts how often it is asked."""

    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 10

    def encode(self, text: str, **options: Any) -> list[int]:
        return [1]

    def decode(self, tokens: list[int], **options: Any) -> str:
        self.asked += 1
        return "".join(f"<{token}>" for token in tokens)


def completion(sample: int = 0, **values: Any) -> Completion:
    request = Request(3, PROMPT, SamplingParams(n=2), range(2))
    plain = Completion(request, sample, [7, 9, 8], "Tom has 7", "eos", None, -6.5)
    return replace(plain, **values)


def request_output(tokenizer: Any = None, **values: Any) -> RequestOutput:
    drawn = [completion(1, **values), completion(0, **values)]
    return RequestOutput.of("12", "How many?", list(PROMPT), drawn, tokenizer)


@pytest.mark.parametrize(
    ("ended_by", "finish_reason"),
    [("eos", "stop"), ("stop", "stop"), ("length", "length"), ("context", "length"),
     ("error", "error")],
)  # fmt: skip
def test_why_a_sample_ended_in_vllm_s_words_and_in_ours(ended_by: Any, finish_reason: str) -> None:
    output = CompletionOutput.of(completion(1, finish_reason=ended_by), None)
    assert (output.index, output.finish_reason, output.ended_by) == (1, finish_reason, ended_by)
    assert (output.text, output.token_ids, output.cumulative_logprob) == (
        "Tom has 7", [7, 9, 8], -6.5,
    )  # fmt: skip


def test_outputs_stand_by_their_index() -> None:
    output = request_output(num_cached_tokens=16)
    assert [sample.index for sample in output.outputs] == [0, 1]
    assert (output.request_id, output.finished, output.num_cached_tokens) == ("12", True, 16)


def test_log_probabilities_are_mappings_with_the_chosen_token_first() -> None:
    found = mappings([None, *NOTED], Tokenizer())
    assert found == [
        None,
        {7: Logprob(-0.5, 1, "<7>"), 8: Logprob(-1.0, 2, "<8>")},
        {9: Logprob(-4.0, 31, "<9>"), 7: Logprob(-0.25, 1, "<7>"), 8: Logprob(-1.5, 2, "<8>")},
        {8: Logprob(-2.0, 3, "<8>")},
    ]
    assert [next(iter(at)) for at in found[1:] if at] == [7, 9, 8]
    assert all(
        of.decoded_token is None for at in mappings(NOTED, None) for of in (at or {}).values()
    )


def test_log_probabilities_are_made_when_they_are_looked_at() -> None:
    tokenizer = Tokenizer()
    output = request_output(tokenizer, logprobs=NOTED, prompt_logprobs=[None, *NOTED])
    str(output)
    assert tokenizer.asked == 0
    first = output.outputs[0].logprobs
    assert first == mappings(NOTED, tokenizer) and output.outputs[0].logprobs is first
    assert output.prompt_logprobs == mappings([None, *NOTED], tokenizer)
    none = request_output(tokenizer)
    assert none.prompt_logprobs is None and none.outputs[0].logprobs is None
    with pytest.raises(AttributeError, match="'CompletionOutput' object has no attribute 'sample'"):
        none.outputs[0].sample  # type: ignore[attr-defined]  # noqa: B018


def test_an_output_is_shown_in_a_few_words() -> None:
    long = {"token_ids": list(range(500)), "text": "word " * 400, "logprobs": NOTED * 100}
    output = request_output(None, **long)
    shown = repr(output.outputs[0])
    assert shown.startswith("CompletionOutput(index=0, text='word word")
    assert "finish_reason='stop'" in shown and len(shown) < 400
    assert "1399" not in repr(output) and len(repr(output)) < 1500
    assert repr(output).startswith("RequestOutput(request_id='12', prompt='How many?', prompt_tok")


@pytest.mark.parametrize("noted", [None, NOTED])
def test_asdict_goes_into_json(noted: Any) -> None:
    output = request_output(Tokenizer(), logprobs=noted, prompt_logprobs=noted)
    told = json.loads(json.dumps(asdict(output)))
    assert told["prompt_token_ids"] == list(PROMPT)
    assert set(told) == {each.name for each in fields(RequestOutput)}
    assert told["outputs"][1]["index"] == 1
    if noted:
        assert told["outputs"][0]["logprobs"][1]["9"] == {
            "logprob": -4.0, "rank": 31, "decoded_token": "<9>",
        }  # fmt: skip
        assert told["prompt_logprobs"][0]["8"]["rank"] == 2


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_whole_and_hold_no_engine_s_objects(again: Any) -> None:
    output = request_output(Tokenizer(), logprobs=NOTED, prompt_logprobs=NOTED)
    other = again(output)
    assert other == output and other.prompt_logprobs == mappings(NOTED, Tokenizer())
    sample = again(output.outputs[0])
    assert sample == output.outputs[0] and set(vars(sample)) == {f.name for f in fields(sample)}
    assert output.outputs[0].completion.request.key == 3
    with pytest.raises(UsageError, match="this output is a copy: give the one that the stream"):
        sample.completion  # noqa: B018
