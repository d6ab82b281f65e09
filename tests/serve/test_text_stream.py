"""Text in pieces: whatever the tokens and stops, the pieces are the whole text's beginning."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.engine.text.detokenize import completion_text
from sharegen.serve.text_stream import TextStream
from tests.tiny import tiny_tokenizer


@cache
def tokenizer() -> Any:
    return tiny_tokenizer()


TOKENS = st.lists(st.integers(3, 383), max_size=30)


@settings(deadline=None, max_examples=30)
@given(prompt=TOKENS.filter(bool), steps=st.lists(TOKENS, max_size=6))
def test_the_pieces_make_the_text(prompt: list[int], steps: list[list[int]]) -> None:
    stream = TextStream(tokenizer(), prompt, (), special=False)
    said = "".join(stream.push(tokens) for tokens in steps)
    whole = completion_text(tokenizer(), prompt, [token for tokens in steps for token in tokens])
    assert whole.startswith(said)
    assert said + stream.rest(whole) == whole


@pytest.mark.parametrize(
    ("text", "stops", "said"),
    [("Tom has 3", ("\n",), "Tom has 3"), ("Tom has ap", ("apples",), "Tom has "),
     ("Tom has ap", ("apples", "s ap!"), "Tom ha"), ("Tom\n", ("\n\n", "x"), "Tom")],
)  # fmt: skip
def test_what_a_stop_may_begin_with_is_held_back(
    text: str, stops: tuple[str, ...], said: str
) -> None:
    prompt = tokenizer()("Question:")["input_ids"]
    stream = TextStream(tokenizer(), prompt, stops, special=False)
    ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert "".join(stream.push([token]) for token in ids) == said
    assert said + stream.rest(text) == text


def test_half_a_character_waits_for_its_rest() -> None:
    first, *rest = tokenizer()("日", add_special_tokens=False)["input_ids"]
    if rest:
        stream = TextStream(tokenizer(), [5], (), special=False)
        assert stream.push([first]) == ""
        assert stream.push(rest) == "日"


@pytest.mark.parametrize(
    ("text", "marker", "said"),
    [("Tom has 3 eggs", "has", "Tom "), ("Tom ha", "has", "Tom "), ("Tom", "", ""),
     ("Tom", "x", "Tom")],
)  # fmt: skip
def test_what_may_be_a_call_is_held_back(text: str, marker: str, said: str) -> None:
    prompt = tokenizer()("Question:")["input_ids"]
    stream = TextStream(tokenizer(), prompt, (), special=False, held_from=marker)
    ids = tokenizer()(text, add_special_tokens=False)["input_ids"]
    assert "".join(stream.push([token]) for token in ids) == said
    assert said + stream.rest(text) == text
