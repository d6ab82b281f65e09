"""Equal prompts are one group, tokenised as TRL's own generation tokenises them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.errors import RequestError
from sharegen.trl.prompts import grouped
from tests.tiny import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TRAINER = SimpleNamespace(processing_class=TOKENIZER, chat_template=None, chat_template_kwargs={})


@given(st.lists(st.sampled_from(["a", "b b", "0 1 2", "日本"]), min_size=1, max_size=12))
def test_every_prompt_has_its_place_in_one_group(prompts: list[str]) -> None:
    groups = grouped(prompts, TRAINER)
    assert sorted(place for group in groups for place in group.places) == list(range(len(prompts)))
    assert len(groups) == len(set(prompts))
    for group in groups:
        for place in group.places:
            assert group.token_ids == TOKENIZER(text=prompts[place])["input_ids"]


def test_conversations_go_through_the_chat_template() -> None:
    turns: list[Any] = [[{"role": "user", "content": text}] for text in ("a", "a", "b")]
    first, second = grouped(turns, TRAINER)
    assert (first.places, second.places) == ((0, 1), (2,))
    text = TOKENIZER.decode(first.token_ids)
    assert text.endswith("<|user|>a\n<|assistant|>")


def test_the_trainer_s_template_and_its_arguments_are_used() -> None:
    trainer = SimpleNamespace(
        processing_class=TOKENIZER,
        chat_template="{{ messages[0]['content'] }}{{ mood }}",
        chat_template_kwargs={"mood": "!"},
    )
    [group] = grouped([[{"role": "user", "content": "a"}]], trainer)
    assert TOKENIZER.decode(group.token_ids).endswith("a!")


def test_a_picture_is_refused_by_its_place() -> None:
    texts: Any = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    picture: Any = [{"role": "user", "content": [{"type": "image", "image": object()}]}]
    with pytest.raises(RequestError, match="prompt 1 has a part of type 'image'"):
        grouped([texts, picture], TRAINER)
