"""What each token adds to a text: its letters, its leading space, its bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from sharegen.engine.text.detokenize import completion_text, decode
from sharegen.engine.text.vocabulary import Vocabulary
from tests.engine.tokenizers_for_tests import TEXT, byte_level, python_bytes, sentence_piece


@cache
def metaspace() -> PreTrainedTokenizerFast:
    """T5's kind: a space before the first word, which its decoder takes away."""
    letters = sorted({letter for line in TEXT for letter in line if not letter.isspace()})
    words = sorted({"▁" + word for line in TEXT for word in line.split()})
    vocab = [("<unk>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("true", -4.0), ("▁true", -4.0)]
    vocab += [(piece, -6.0) for piece in dict.fromkeys([*letters, *words])]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", bos_token="</s>"
    )


@cache
def gemma() -> PreTrainedTokenizerFast:
    """Gemma's kind: the decoder takes no space away."""
    tokenizer = Tokenizer.from_str(sentence_piece().backend_tokenizer.to_str())
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


MAKERS = [byte_level, sentence_piece, gemma, python_bytes]
EVERY = pytest.mark.parametrize("make", [*MAKERS, metaspace])


@pytest.mark.parametrize("make", MAKERS)
@given(text=st.text(max_size=30), cut=st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_the_bytes_of_tokens_are_those_of_the_text(
    make: Callable[[], Any], text: str, cut: int
) -> None:
    tokenizer = make()
    ids = tokenizer.encode("x" + text.encode(errors="ignore").decode(), add_special_tokens=False)
    ids = [token for token in ids if token not in tokenizer.all_special_ids]
    vocabulary = Vocabulary.of(tokenizer)
    bytes_of = [vocabulary.utf8(token) for token in ids[1:]]
    assert None not in bytes_of
    whole = completion_text(tokenizer, ids[:1], ids[1:])
    assert b"".join(bytes_of).decode() == whole  # type: ignore[arg-type]
    some = b"".join(bytes_of[:cut])  # type: ignore[arg-type]
    assert whole.encode().startswith(some)


@EVERY
def test_the_texts_of_tokens_are_the_text(make: Callable[[], Any]) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.of(tokenizer)
    ids = tokenizer.encode("x The true answer is 13 or true", add_special_tokens=False)
    text = "".join(map(vocabulary.text, ids[1:]))
    assert text == completion_text(tokenizer, ids[:1], ids[1:])


def test_a_word_with_a_space_before_it_is_not_the_word() -> None:
    tokenizer = metaspace()
    vocabulary = Vocabulary.of(tokenizer)
    true, spaced = tokenizer.convert_tokens_to_ids(["true", "▁true"])
    assert tokenizer.decode([true]) == tokenizer.decode([spaced])
    assert [vocabulary.text(true), vocabulary.text(spaced)] == ["true", " true"]
    assert [vocabulary.utf8(true), vocabulary.utf8(spaced)] == [b"true", b" true"]


@pytest.mark.parametrize("make", [byte_level, sentence_piece, python_bytes])
def test_pieces_of_characters_have_their_bytes(make: Callable[[], Any]) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.of(tokenizer)
    ids = tokenizer.encode("x🎉", add_special_tokens=False)
    pieces = [token for token in ids if "\ufffd" in vocabulary.text(token)]
    assert len(pieces) > 1
    assert b"".join(vocabulary.utf8(token) or b"?" for token in pieces).decode() == "🎉"


def test_the_replacement_character_itself_is_text() -> None:
    vocab = [("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("\ufffd", -2.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.decoder = decoders.Metaspace()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    assert Vocabulary.of(made).utf8(3) == "\ufffd".encode()


def test_every_byte_of_a_byte_level_vocabulary() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary.of(tokenizer)
    letters = pre_tokenizers.ByteLevel.alphabet()
    found = {vocabulary.utf8(tokenizer.convert_tokens_to_ids(letter)) for letter in letters}
    assert found == {bytes([byte]) for byte in range(256)}


@EVERY
def test_special_tokens_are_their_names_where_they_are_asked_for(make: Callable[[], Any]) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.of(tokenizer)
    token = tokenizer.eos_token_id
    assert vocabulary.text(token) == ""
    assert vocabulary.text(token, special=True) == tokenizer.eos_token
    assert vocabulary.utf8(token) == tokenizer.eos_token.encode()


@EVERY
@pytest.mark.filterwarnings("ignore:the model draws ids")
def test_ids_without_a_token_are_nothing(make: Callable[[], Any]) -> None:
    tokenizer = make()
    vocabulary = Vocabulary.of(tokenizer)
    for token in (len(tokenizer) + 5, 10**6):
        assert (vocabulary.text(token), vocabulary.utf8(token)) == ("", b"")


@EVERY
@pytest.mark.filterwarnings("ignore:the model draws ids")
def test_a_text_goes_on_without_ids_that_have_no_token(make: Callable[[], Any]) -> None:
    tokenizer = make()
    ids = tokenizer.encode("x The answer", add_special_tokens=False)
    mixed = [token for each in ids for token in (each, 10**6, len(tokenizer) + 7)]
    assert decode(tokenizer, mixed) == decode(tokenizer, ids)
    assert completion_text(tokenizer, mixed[:3], mixed[3:]) == completion_text(
        tokenizer, ids[:1], ids[1:]
    )
    assert completion_text(tokenizer, [10**6], [10**6, *ids]) == decode(tokenizer, ids)


def test_what_the_tokenizer_lacks_is_told_once(recwarn: pytest.WarningsRecorder) -> None:
    tokenizer = copy.copy(python_bytes())
    for _ in range(3):
        assert decode(tokenizer, [10**6]) == ""
    assert [str(warning.message) for warning in recwarn] == [
        "the model draws ids that the tokenizer has no token for: texts go on without them"
    ]


def test_tokens_that_are_added_later_are_seen() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_level().backend_tokenizer.to_str()),
        eos_token="</s>",
    )
    token = len(tokenizer)
    assert Vocabulary.of(tokenizer).text(token) == ""
    tokenizer.add_tokens(["END"])
    assert Vocabulary.of(tokenizer).text(token) == "END"
    tokenizer.add_tokens([AddedToken("<end>", special=True)], special_tokens=True)
    assert Vocabulary.of(tokenizer).text(token + 1) == ""
    assert Vocabulary.of(tokenizer).utf8(token + 1) == b"<end>"
    assert Vocabulary.of(tokenizer) is Vocabulary.of(tokenizer)


def test_a_sentencepiece_file(tmp_path: Any) -> None:
    """What SentencePiece itself trains, read as Llama's tokenizer is."""
    (tmp_path / "text.txt").write_text("".join(TEXT) * 4)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text.txt"), model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe", vocab_size=480, byte_fallback=True, character_coverage=0.98,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    tokenizer = LlamaTokenizer.from_pretrained(tmp_path)
    vocabulary = Vocabulary.of(tokenizer)
    for text in ("the answer is 13.", " naïve  façade\n", "🚀日本語", "q<s>w"):
        ids = tokenizer.encode("x" + text, add_special_tokens=False)
        start = len(tokenizer.encode("x", add_special_tokens=False))
        said = [vocabulary.utf8(token) or b"?" for token in ids[start:]]
        assert b"".join(said).decode() == decode(tokenizer, ids, True)[1:]
