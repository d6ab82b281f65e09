"""A completion's text is what its tokens add to the prompt's."""

import random
import time

import pytest

from sharegen.engine.text.detokenize import _is_plain, completion_text, decode
from tests.engine.tokenizers_for_tests import TEXT, byte_level, python_bytes, sentence_piece

TOKENIZERS = pytest.mark.parametrize("make", [byte_level, sentence_piece])
WITH_PYTHON = pytest.mark.parametrize("make", [byte_level, sentence_piece, python_bytes])
WORDS = ["Answer:", " 13", "Grüße", " naïve", "日本語", "🙂", "🚀", "\n\n", " ", "  ", "x", "ответ"]


@WITH_PYTHON
def test_prompt_and_completion_add_up(make):
    """Cut a text's tokens anywhere: prompt text + completion text = the whole text."""
    tokenizer = make()
    for line in TEXT:
        ids = tokenizer.encode(line, add_special_tokens=False)
        whole = decode(tokenizer, ids)
        for cut in range(1, len(ids)):
            before = decode(tokenizer, ids[:cut])
            if before.endswith("\ufffd"):
                before = before.rstrip("\ufffd")
            assert before + completion_text(tokenizer, ids[:cut], ids[cut:]) == whole


@WITH_PYTHON
def test_random_completions(make):
    tokenizer = make()
    rng = random.Random(0)
    for _ in range(300):
        prompt = "Question: " + "".join(rng.choices(WORDS, k=rng.randint(0, 30)))
        more = "".join(rng.choices(WORDS, k=rng.randint(1, 10)))
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        # As a model would go on: the tokens of the longer text, where they begin with the prompt's.
        both = tokenizer.encode(prompt + more, add_special_tokens=False)
        if both[: len(ids)] == ids:
            text = completion_text(tokenizer, ids, both[len(ids) :])
            assert decode(tokenizer, ids) + text == decode(tokenizer, both)


def test_the_leading_space_stays():
    tokenizer = sentence_piece()
    prompt = tokenizer.encode("Question:", add_special_tokens=False)
    answer = tokenizer.convert_tokens_to_ids(["▁Answer:", "▁13."])
    assert tokenizer.decode(answer) == "Answer: 13."
    assert completion_text(tokenizer, prompt, answer) == " Answer: 13."


@TOKENIZERS
def test_a_character_cut_at_the_end_is_replaced_once_and_only_there(make):
    tokenizer = make()
    ids = tokenizer.encode("Answer: 🚀", add_special_tokens=False)
    texts = [completion_text(tokenizer, ids[:2], ids[2:end]) for end in range(2, len(ids) + 1)]
    assert texts[0] == ""
    assert texts[-1].endswith("🚀")
    assert "\ufffd" not in texts[-1]
    assert texts[-2].endswith("\ufffd")


@TOKENIZERS
def test_a_prompt_that_ends_inside_a_character(make):
    tokenizer = make()
    ids = tokenizer.encode("x 🚀 y", add_special_tokens=False)
    cut = next(i for i in range(1, len(ids)) if decode(tokenizer, ids[:i]).endswith("\ufffd"))
    assert completion_text(tokenizer, ids[:cut], ids[cut:]) == "🚀 y"


@TOKENIZERS
def test_a_long_run_of_split_characters_before_the_completion(make):
    """The prompt's tail may not begin inside a character, or its neighbours decode wrongly."""
    tokenizer = make()
    start = tokenizer.encode("x", add_special_tokens=False)
    more = tokenizer.encode("x問題", add_special_tokens=False)[len(start) :]
    for length in range(1, 12):
        prompt = tokenizer.encode("x" + "質" * length, add_special_tokens=False)
        assert completion_text(tokenizer, prompt, more) == "問題"


@TOKENIZERS
def test_special_tokens_are_left_out(make):
    tokenizer = make()
    prompt = [tokenizer.bos_token_id, *tokenizer.encode("Answer:", add_special_tokens=False)]
    ids = tokenizer.encode("Answer: 13", add_special_tokens=False)[len(prompt) - 1 :]
    text = completion_text(tokenizer, prompt, [*ids, tokenizer.eos_token_id])
    assert text == " 13"
    assert completion_text(tokenizer, [tokenizer.bos_token_id], [tokenizer.eos_token_id]) == ""


@WITH_PYTHON
def test_spaces_before_punctuation_stay(make):
    tokenizer = make()
    prompt = tokenizer.encode("x", add_special_tokens=False)
    both = tokenizer.encode("x . , ? don 't", add_special_tokens=False)
    assert completion_text(tokenizer, prompt, both[len(prompt) :]) == " . , ? don 't"


def test_thousands_a_second():
    """1,000 completions of some 100 tokens take at most two seconds of the processor."""
    tokenizer = byte_level()
    prompt = tokenizer.encode(TEXT[0] * 20, add_special_tokens=False)
    output = tokenizer.encode(TEXT[0] * 2, add_special_tokens=False)
    begin = time.process_time()
    for _ in range(1000):
        completion_text(tokenizer, prompt, output)
    assert time.process_time() - begin < 2


@TOKENIZERS
def test_a_tokenizer_in_rust_is_asked_directly_and_says_the_same(make):
    tokenizer = make()
    ids = [*tokenizer.encode(TEXT[0]), *tokenizer.all_special_ids, 10**6]
    assert _is_plain(type(tokenizer))
    for special in (False, True):
        whole = tokenizer.decode(
            ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        assert decode(tokenizer, ids, special) == whole


def test_a_tokenizer_with_a_decode_of_its_own_is_asked_itself():
    assert not _is_plain(type(python_bytes()))

    class Own(type(byte_level())):
        def _decode(self, *args, **named):
            return super()._decode(*args, **named).upper()

    assert not _is_plain(Own)
