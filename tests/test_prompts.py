"""Prompts in all forms that there are, and what is none."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sharegen.engine.core.request import SamplingParams
from sharegen.errors import CapacityError, RequestError
from sharegen.prompts import as_list, named, one_each, pairs, tokenised
from tests.tiny import tiny_tokenizer

IDS = [5, 6, 7]


@pytest.mark.parametrize(
    ("prompts", "several"),
    [("Tom", ["Tom"]), (IDS, [IDS]), ([], []), (["Tom"], ["Tom"]), ([IDS, [8]], [IDS, [8]]),
     ({"prompt": "Tom"}, [{"prompt": "Tom"}]), ((5, 6), [(5, 6)]), (("Tom", IDS), ["Tom", IDS]),
     (pd.Series(["Ann", "Tom"])[1:], ["Tom"]), ({"Tom": 1}.keys(), ["Tom"])],
)  # fmt: skip
def test_one_prompt_or_several(prompts: Any, several: list[Any]) -> None:
    assert as_list(prompts) == several


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(IDS, (None, IDS)), (tuple(IDS), (None, IDS)), (np.array(IDS), (None, IDS)),
     ({"prompt_token_ids": IDS}, (None, IDS)), ({"prompt_token_ids": []}, (None, [])),
     ({"prompt": "Tom", "prompt_token_ids": IDS}, ("Tom", IDS)),
     ({"prompt_token_ids": range(3), "multi_modal_data": None}, (None, [0, 1, 2]))],
)  # fmt: skip
def test_token_ids_need_no_tokenizer(prompt: Any, expected: tuple[Any, Any]) -> None:
    text, ids = tokenised(prompt, None)
    assert (text, ids) == expected and all(type(token) is int for token in ids)


@pytest.mark.parametrize(
    "prompts", [None, 5, (text for text in ["Tom"])], ids=["none", "five", "once"]
)
def test_neither_one_prompt_nor_several(prompts: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or a list of token ids"):
        as_list(prompts)


def test_texts() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("Tom has 3")["input_ids"]
    assert tokenised("Tom has 3", tokenizer) == ("Tom has 3", ids)
    assert tokenised({"prompt": "Tom has 3"}, tokenizer) == ("Tom has 3", ids)
    with pytest.raises(RequestError, match="a text prompt needs a tokenizer"):
        tokenised({"prompt": "Tom has 3"}, None)


@pytest.mark.parametrize(
    "prompt",
    [None, 5, {}, {"prompt": 5}, {"prompt": ["Tom"]}, {"prompt_token_ids": "567"}, ["Tom"],
     {"prompt_token_ids": [1.5]}, {"prompt_token_ids": 5}, [[5]], {"prompt": None}, 1.5],
    ids=repr,
)  # fmt: skip
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or a list of token ids") as raised:
        tokenised(prompt, None)
    assert "\n" not in str(raised.value)


def test_what_a_prompt_may_not_bring() -> None:
    with pytest.raises(RequestError, match="with one of them, and has no 'multi_modal_data'"):
        tokenised({"prompt": "Tom", "multi_modal_data": {"image": 1}}, None)


def test_an_error_says_which_prompt_it_is_about() -> None:
    with pytest.raises(CapacityError, match=r"^prompt 3: too large$"), named(3):
        raise CapacityError("too large")
    with pytest.raises(CapacityError, match=r"^too large$"), named(0, is_one_of_many=False):
        raise CapacityError("too large")


def test_a_worker_s_error_still_says_which_request_it_is_about() -> None:
    error = RequestError("too long")
    assert error.request_key is None
    error.request_key = 3
    assert pickle.loads(pickle.dumps(error)).request_key == 3


def test_parameters_for_each() -> None:
    one, other = SamplingParams(n=2), SamplingParams(n=3)
    assert one_each(None, 2) == [SamplingParams()] * 2 and one_each(one, 2) == [one, one]
    assert one_each([one, other], 2) == [one, other]
    assert list(pairs(iter("ab"), one)) == [("a", one), ("b", one)]
    assert list(pairs(iter("ab"), iter([one, other]))) == [("a", one), ("b", other)]
