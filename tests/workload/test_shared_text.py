"""Tokens of prompts whose beginning is tokenised once are those of whole prompts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from sharegen.workload import shared_text
from sharegen.workload.prompt import token_ids

_LLAMA_3, _QWEN = sorted(shared_text._PATTERNS, key=len, reverse=True)
_TEXT = [
    "Question: Tom's 12 apples cost $3.50, they're 1234 in all.\nAnswer: it's 7\n\n",
    "\nQuestion:  two spaces\t and a tab\n\n \n \nAnswer: 日本 état e\u0301 ?!\n#### 42\n\n\n",
]
_SPLIT = (pre.Split(Regex(_LLAMA_3), "isolated"), pre.Split(Regex(_QWEN), "isolated"))
_BYTES = pre.ByteLevel(add_prefix_space=False, use_regex=False)
_CUT = {
    "gpt-2": pre.ByteLevel(add_prefix_space=False),
    "smollm": pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(False)]),
    "llama-3": pre.Sequence([_SPLIT[0], _BYTES]),
    "qwen": pre.Sequence([_SPLIT[1], _BYTES]),
}
_WHOLE = {
    "sentencepiece": pre.Metaspace(),
    "a space in front": pre.ByteLevel(add_prefix_space=True),
    "no words": _BYTES,
    "another pattern": pre.Sequence([pre.Split(Regex(r"\n\w+|."), "isolated"), _BYTES]),
    "digits alone": pre.Sequence([pre.Digits(), _BYTES]),
    "another kind": pre.Sequence([pre.Whitespace(), _BYTES]),
}


def _tokenizer(words: Any, normalizer: Any = None, **added: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = words, decoders.ByteLevel()
    backend.normalizer = normalizer
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(_TEXT * 20, trainer)
    backend.add_tokens([AddedToken("<end>", **added)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.fixture(autouse=True)
def always_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_text, "_WORTH", 1)


_CASES = {name: _tokenizer(words, normalizers.NFC()) for name, words in _CUT.items()}
_PIECES = st.sampled_from(
    ["Question", "\n", "\n\n", " ", "  ", "\t", "'s", "'", "12", "1", "$", "?!", "\r\n", "é", "e",
     "\u0301", "日", "<end>", "A", ".", "\u00a0", "\u2028"]
)  # fmt: skip


@given(
    head=st.lists(_PIECES, max_size=12), rests=st.lists(st.lists(_PIECES, max_size=6), min_size=2)
)
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("name", sorted(_CUT))
def test_the_tokens_are_those_of_whole_texts(
    name: str, head: list[str], rests: list[list[str]]
) -> None:
    tokenizer = _CASES[name]
    assert shared_text.may_cut(tokenizer)
    texts = ["".join([*head, "\nQuestion", *rest]) for rest in rests]
    seen: list[str] = []

    def encode(some: list[str]) -> list[list[int]]:
        seen.extend(some)
        return list(tokenizer(some, add_special_tokens=False)["input_ids"])

    whole = [encode([text])[0] for text in texts]
    seen.clear()
    assert [list(ids) for ids in shared_text.encoded(texts, tokenizer, encode)] == whole
    assert len(seen) <= len(texts) + 2  # and nothing was tokenised a second time
    assert [list(ids) for ids in token_ids(texts, tokenizer, begin=False)] == whole


@given(texts=st.lists(st.lists(_PIECES, max_size=14).map("".join), max_size=12))
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("name", sorted(_CUT))
def test_texts_that_come_one_by_one_have_the_tokens_of_whole_ones(
    name: str, texts: list[str]
) -> None:
    def encode(some: list[str]) -> list[list[int]]:
        return list(_CASES[name](some, add_special_tokens=False)["input_ids"])

    heads = shared_text.SharedHeads()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared_text, "_LEAST", 1)
        for text in [*texts, *("".join(pair) for pair in itertools.pairwise(texts)), *texts]:
            assert heads([text], _CASES[name], encode) == encode([text])


def test_what_texts_one_by_one_begin_with_is_tokenised_once() -> None:
    seen: list[int] = []

    def encode(some: list[str]) -> list[list[int]]:
        seen.extend(map(len, some))
        return list(_CASES["qwen"](some, add_special_tokens=False)["input_ids"])

    heads, shots = shared_text.SharedHeads(), "Question: 1 + 1?\nAnswer: 2\n\n" * 100
    for number in range(9):
        for text in (f"{shots}Question: {number}?\nAnswer:", f"Solve.\n{shots}Now: {number}"):
            [ids] = heads([text], _CASES["qwen"], encode)
            assert ids == _CASES["qwen"](text, add_special_tokens=False)["input_ids"]
    assert len(heads._heads) == 2 and sum(seen) < 5 * len(shots)
    whole = shared_text.SharedHeads()
    for _ in range(3):
        whole([shots], _tokenizer(_WHOLE["sentencepiece"]), encode)
    assert not whole._heads


@pytest.mark.parametrize("name", sorted(_WHOLE))
def test_other_tokenizers_see_whole_texts(name: str) -> None:
    assert not shared_text.may_cut(_tokenizer(_WHOLE[name]))


def test_nor_does_one_whose_own_tokens_reach_beyond_themselves_or_that_changes_texts() -> None:
    words = _CUT["gpt-2"]
    assert shared_text.may_cut(_tokenizer(words))
    assert not shared_text.may_cut(_tokenizer(words, lstrip=True))
    assert not shared_text.may_cut(_tokenizer(words, rstrip=True))
    assert not shared_text.may_cut(_tokenizer(words, normalizers.Lowercase()))
    with_line = _tokenizer(words)
    with_line.add_tokens(["\nQ"])
    assert not shared_text.may_cut(with_line)
    dropping = _tokenizer(words)
    dropping.backend_tokenizer.model.dropout = 0.5
    assert not shared_text.may_cut(dropping)


def test_texts_that_share_no_line_are_whole() -> None:
    assert shared_text._place(["Question: 1", "Question: 2"]) == 0
    assert shared_text._place(["a\nb c", "a\nd e"]) == 0
    assert shared_text._place(["a\n1", "a\n1"]) == 0
    assert shared_text._place(["a\nb c", "a\nb e", "a\nb"]) == 2
