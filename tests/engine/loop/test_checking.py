"""What can never run is refused in one line, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.errors import CapacityError, RequestError
from tests.engine.jobs import assert_empty, loaded, make_engine, requests_of, run

SAMPLED = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], SAMPLED, RequestError, "the prompt is empty"),
        ([5] * 256, SAMPLED, RequestError, "has 256 tokens, but the model's context holds 256"),
        ([5, 128], SAMPLED, RequestError, "outside the model's vocabulary of 128"),
        ([-1], SAMPLED, RequestError, "outside the model's vocabulary"),
        ([5, 2**32 + 5], SAMPLED, RequestError, "outside the model's vocabulary"),
        ([2**70], SAMPLED, RequestError, "outside the model's vocabulary"),
        ([5], replace(SAMPLED, stop="x"), RequestError, "stop strings need a tokenizer"),
        ([5], replace(SAMPLED, bad_words=["x"]), RequestError, "tokenizer"),
        ([5], replace(SAMPLED, logit_bias={128: 1.0}), RequestError, "128"),
        ([5] * 50, SAMPLED, CapacityError,
         r"holds 13 blocks of 4 tokens, but one sample needs 16 \(50 prompt tokens and up to 10"),
    ],
)  # fmt: skip
def test_refused_in_one_line(
    prompt: list[int], params: SamplingParams, error: type[Exception], message: str
) -> None:
    engine = make_engine(loaded("llama"), blocks=13)
    request = Request(0, prompt, params, range(1))
    for refuse in (engine.check, lambda request: list(engine.generate([request]))):
        with pytest.raises(error, match=message) as raised:
            refuse(request)
        assert "\n" not in str(raised.value)
    assert_empty(engine)
    run(engine, requests_of([[5, 6]], SAMPLED))
