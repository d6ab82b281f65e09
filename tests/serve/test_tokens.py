"""Prompts that are asked again are tokenised once, and those of a clock are not."""

from __future__ import annotations

from typing import Any

import pytest

from sharegen.errors import ModelError
from sharegen.serve import tokens
from sharegen.serve.tokens import PromptTooLong, Tokens
from sharegen.workload.prompt import Prompt, tokenise
from tests.tiny import tiny_tokenizer

CHAT = Prompt([{"role": "user", "content": "Tom"}], "Tom")


@pytest.fixture
def tokenizer() -> Any:
    return tiny_tokenizer()


def test_ids_are_those_of_a_job(tokenizer: Any) -> None:
    prompts = [Prompt("Tom has 3", ""), CHAT, Prompt((5, 6), ""), Prompt("Tom has 3", "")]
    found = Tokens(tokenizer, 2048).of(prompts)
    assert found == [list(ids) for ids in tokenise(prompts, tokenizer)]
    assert found[0] is found[3]


def test_the_least_recently_asked_is_forgotten(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Prompt(f"Tom has {n}", "") for n in range(9)]
    monkeypatch.setattr(tokens, "_MOST_TOKENS", 20)
    known = Tokens(tokenizer, 2048)
    ids = known.of(texts)
    assert known._held == sum(map(len, known._known.values())) <= 20
    assert list(known._known.values()) == ids[-len(known._known) :]


def test_a_chat_that_writes_the_date_is_made_anew(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ strftime_now('%Y') }}{{ messages[0].content }}"
    known = Tokens(tokenizer, 2048)
    assert known.of([CHAT]) == known.of([CHAT]) and not known._known
    assert not known.last([CHAT])


def test_what_is_remembered_lasts_and_token_ids_do(tokenizer: Any) -> None:
    prompts = [Prompt("Tom has 3", ""), Prompt((5, 6), "")]
    known = Tokens(tokenizer, 2048)
    assert known.last(prompts[1:]) and not known.last(prompts)
    known.of(prompts)
    assert known.last(prompts)


def test_a_chat_that_the_template_refuses(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ModelError, match="refused"):
        Tokens(tokenizer, 2048).of([CHAT])


def test_what_is_far_longer_than_its_tokens_is_not_remembered(tokenizer: Any) -> None:
    tokenizer.chat_template = "{{ messages[-1].content }}"
    long = Prompt([{"role": "user", "content": "x" * 9000}, {"role": "user", "content": "Tom"}], "")
    known = Tokens(tokenizer, 2048)
    assert known.of([long]) == known.of([long]) and not known._known


def test_what_surely_is_too_long_is_said_by_its_beginning(tokenizer: Any) -> None:
    long = Prompt("Tom has 3 apples. " * 10_000, "")
    with pytest.raises(PromptTooLong, match="more than 64 tokens"):
        Tokens(tokenizer, 64).of([long])
