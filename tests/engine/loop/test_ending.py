"""Why samples end: what is looked up once for a request, and never at a step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.loop.ending import Endings
from sharegen.engine.model.load import load_model
from sharegen.engine.schedule.sequence import SequenceGroup
from tests.engine.jobs import make_engine, run
from tests.engine.tiny_models import make_tiny
from tests.engine.tokenizers_for_tests import byte_level, python_bytes


def group(stop: str) -> SequenceGroup:
    params = SamplingParams(stop=stop)
    leaf: Any = None  # where the prompt ends plays no part
    return SequenceGroup(Request(0, [5], params, range(1)), leaf, 100)


def test_stops_are_looked_up_once_a_request_however_many_lists_run() -> None:
    """At every step each row asks: a cache of 64 lists made 65 of them 200 times slower."""
    endings = Endings(byte_level(), ())
    groups = [group(f"stop {i}") for i in range(200)]
    first = [endings.stops_of(each) for each in groups]
    again = [endings.stops_of(each) for each in groups]
    assert None not in first
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert endings.stops_of(group("stop 199")) is first[199]  # two requests that run together


def test_a_request_without_stops_has_none() -> None:
    assert Endings(byte_level(), ()).stops_of(group([])) is None  # type: ignore[arg-type]


def test_a_model_with_more_ids_than_a_tokenizer_in_python() -> None:
    """ByT5's raises for them: the sample goes on, and its text without them."""
    tokenizer = copy.copy(python_bytes())
    config = copy.deepcopy(make_tiny("llama").config)
    config.vocab_size = 512
    torch.manual_seed(0)
    engine = make_engine(load_model(AutoModelForCausalLM.from_config(config)), tokenizer=tokenizer)
    params = SamplingParams(n=8, max_tokens=12, stop=["é", "xyz"], ignore_eos=True)
    with pytest.warns(UserWarning, match="ids that the tokenizer has no token for") as told:
        found = run(engine, [Request(0, [40, 41], params, range(8))]).completions.values()
    assert len(told) == 1
    assert any(token >= len(tokenizer) + 3 for each in found for token in each.token_ids)
    for completion in found:
        known = [token for token in completion.token_ids if token < len(tokenizer)]
        assert completion.text == tokenizer.decode(known, skip_special_tokens=True)
