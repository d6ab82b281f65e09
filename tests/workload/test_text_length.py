"""A text is said to have more tokens than there is room for where it has, and never else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from sharegen.workload import text_length
from sharegen.workload.text_length import TextLength
from tests.workload.test_shared_text import _CUT, _TEXT, _WHOLE, _tokenizer


def _sentencepiece() -> PreTrainedTokenizerFast:
    """One like Llama 2's: any text is a word, and what it does not know is bytes."""
    special = ["<unk>", *(f"<0x{each:02X}>" for each in range(256))]
    backend = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    backend.train_from_iterator(_TEXT * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def _dropping(words: Any) -> PreTrainedTokenizerFast:
    """One that has no token for most characters."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = words
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
    backend.train_from_iterator(["Tom has apples. Question"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


_CASES = {name: _tokenizer(words, normalizers.NFC()) for name, words in _CUT.items()}
_CASES |= {f"{name}, plain": _tokenizer(words) for name, words in _CUT.items()}
_CASES |= {name: _tokenizer(words) for name, words in _WHOLE.items()}
_CASES |= {f"{name}, bytes dropped": _dropping(words) for name, words in _CUT.items()}
_CASES["llama-2"] = _sentencepiece()
_PIECES = st.sampled_from(
    ["Question", "a b ", " ", "\n\n", "'s", " 'll be", "12", "?!", "é", "e\u0301", "日本", "<end>",
     "\u1100\u1161\u11a8", "\u03b1\u0313\u0300\u0345", "Tom has 3 apples. ", "x" * 40, " " * 30]
)  # fmt: skip


@given(pieces=st.lists(_PIECES, max_size=60), times=st.integers(1, 20), most=st.integers(0, 40))
@settings(deadline=None, max_examples=100)
@pytest.mark.parametrize("name", sorted(_CASES))
def test_it_is_certain(name: str, pieces: list[str], times: int, most: int) -> None:
    tokenizer, text = _CASES[name], "".join(pieces) * times

    def encode(some: list[str]) -> list[list[int]]:
        return list(tokenizer(some, add_special_tokens=False)["input_ids"])

    if TextLength(tokenizer).is_over(text, most, encode):
        assert len(encode([text])[0]) > most


@pytest.mark.parametrize(
    ("name", "text", "seen"),
    [
        ("llama-3", "Tom has 3 apples. " * 100_000, 8_000),
        ("gpt-2", "Tom has 3 apples. " * 100_000, 8_000),
        ("qwen", "x" * 2_000_000, 0),
        ("another pattern", "Tom has 3 apples. " * 100_000, 0),
        ("smollm", "1 " * 100_000, 8_000),
        ("smollm", "a,b;c\n" * 100_000, 8_000),
        ("smollm, bytes dropped", "a" * 2_000_000, 0),
        ("llama-2", "Tom has 3 apples. " * 100_000, 0),
    ],
)
def test_little_of_a_long_text_is_tokenised(name: str, text: str, seen: int) -> None:
    found: list[int] = []

    def encode(some: list[str]) -> list[list[int]]:
        found.extend(map(len, some))
        ids: Any = _CASES[name](some, add_special_tokens=False)["input_ids"]
        return list(ids)

    assert TextLength(_CASES[name]).is_over(text, 1000, encode)
    assert sum(found) <= seen


def test_a_text_of_no_known_tokenizer_and_a_short_one_are_tokenised() -> None:
    def encode(some: list[str]) -> list[list[int]]:
        raise AssertionError("nothing is certain")

    long = "Tom has 3 apples. " * 1000
    assert not TextLength(_CASES["sentencepiece"]).is_over(long, 100, encode)
    assert not TextLength(_CASES["llama-3"]).is_over(long[:1500], 100, encode)
    assert text_length._shrinks(normalizers.Lowercase()) == 0
