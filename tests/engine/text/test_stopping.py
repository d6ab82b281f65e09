"""Stop strings are found at the very token that completes them, and cut exactly."""

import copy
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.text.detokenize import completion_text
from sharegen.engine.text.stopping import Stops, end_tokens
from tests.engine.tokenizers_for_tests import TEXT, byte_level, python_bytes, sentence_piece

TOKENIZERS = pytest.mark.parametrize("make", [byte_level, sentence_piece])
WITH_PYTHON = pytest.mark.parametrize("make", [byte_level, sentence_piece, python_bytes])
STOPS = [
    ("\n\n",),
    ("Question:", "\n\n"),
    ("13.",),
    ("Grüße", "façade"),
    ("🚀",),
    ("語の", "です。"),
    (" ",),
    ("e",),
    ("ä", "ü"),
    ("Answer: 16 - 3 = 13. The answer is 13.",),
]


def walk(tokenizer, stops, prompt, output, **options):
    """Decode token by token as the engine does; (index of the last token, match) or None."""
    checker = Stops.of(tokenizer, stops)
    for i, token in enumerate(output):
        if checker.may_complete(token):
            match = checker.match(prompt, output[: i + 1], **options)
            if match:
                return i, match
    return None


def plain_walk(tokenizer, stops, prompt, output):
    """The same by decoding everything at every token."""
    for i in range(len(output)):
        text = completion_text(tokenizer, prompt, output[: i + 1])
        found = [(text.find(stop), stop) for stop in stops if stop in text]
        if found:
            start, stop = min(found)
            return i, stop, text[:start]
    return None


@WITH_PYTHON
@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.turn(5)
def test_finds_what_decoding_everything_finds(make, stops):
    tokenizer = make()
    found = 0
    for line in TEXT:
        ids = tokenizer.encode("Question: " + line + line, add_special_tokens=False)
        for cut in (1, 2, 7):
            prompt, output = ids[:cut], ids[cut:]
            expected = plain_walk(tokenizer, stops, prompt, output)
            got = walk(tokenizer, stops, prompt, output)
            assert (got and (got[0], got[1].stop, got[1].text)) == expected
            found += got is not None
    assert found


@pytest.mark.slow
@WITH_PYTHON
@pytest.mark.turn(5)
def test_random_tokens(make):
    """Token soup: broken characters, special tokens and bytes between whole words."""
    tokenizer = make()
    rng = random.Random(0)
    common = tokenizer.encode("".join(TEXT), add_special_tokens=False)
    found = 0
    for _ in range(200):
        stops = tuple(rng.choice(["\n\n", "an", "ü", "語", "🚀", "e.", " 1", "Как"]) for _ in "ab")
        pool = common + list(range(len(tokenizer)))
        output = rng.choices(pool, k=40)
        prompt = tokenizer.encode("Question:", add_special_tokens=False)
        expected = plain_walk(tokenizer, stops, prompt, output)
        got = walk(tokenizer, stops, prompt, output)
        assert (got and (got[0], got[1].stop, got[1].text)) == expected
        found += got is not None
    assert found


@TOKENIZERS
def test_a_stop_far_longer_than_its_tokens_and_special_tokens_between(make):
    tokenizer = make()
    prompt = tokenizer.encode("Question:", add_special_tokens=False)
    ids = tokenizer.encode("Question: done END OF ANSWER now", add_special_tokens=False)
    output = [t for token in ids[len(prompt) :] for t in (token, *[tokenizer.bos_token_id] * 9)]
    got = walk(tokenizer, ("END OF ANSWER",), prompt, output)
    assert got
    assert got[1].text == " done "


@TOKENIZERS
def test_the_stop_may_not_reach_into_the_prompt(make):
    tokenizer = make()
    ids = tokenizer.encode("x\n\nx\n\n", add_special_tokens=False)
    newline = [i for i, token in enumerate(ids) if "\n" in tokenizer.decode([ids[0], token])]
    first = newline[0] + 1
    if first < len(ids) and first not in newline:
        pytest.skip("the two newlines are one token here")
    got = walk(tokenizer, ("\n\n",), ids[:first], ids[first:])
    assert got
    assert got[1].text == "\nx"


@TOKENIZERS
def test_the_earliest_stop_cuts(make):
    tokenizer = make()
    prompt = tokenizer.encode("x", add_special_tokens=False)
    output = tokenizer.encode("x. The answer is 13.", add_special_tokens=False)[len(prompt) :]
    whole = completion_text(tokenizer, prompt, output)
    checker = Stops.of(tokenizer, ("3.", "13.", "13"))
    match = checker.match(prompt, output)
    assert match.stop == "13"
    assert match.text == whole[: whole.index("13")]
    kept = checker.match(prompt, output, include_stop=True)
    assert kept.text == match.text + "13"


@TOKENIZERS
def test_min_tokens_exempts_what_ends_within_them(make):
    tokenizer = make()
    prompt = tokenizer.encode("x", add_special_tokens=False)
    output = tokenizer.encode("x\n\nx\n\nx", add_special_tokens=False)[len(prompt) :]
    plain = walk(tokenizer, ("\n\n",), prompt, output)
    later = walk(tokenizer, ("\n\n",), prompt, output, min_tokens=plain[0] + 1)
    assert plain[1].text == ""
    assert later[0] > plain[0]
    assert later[1].text == "\n\nx"
    assert walk(tokenizer, ("\n\n",), prompt, output, min_tokens=len(output)) is None


@TOKENIZERS
def test_the_table_lets_most_tokens_pass_unread(make):
    tokenizer = make()
    checker = Stops.of(tokenizer, ("\n\n",))
    suspects = sum(map(checker.may_complete, range(len(tokenizer))))
    assert 0 < suspects < len(tokenizer) // 20
    assert not checker.may_complete(tokenizer.bos_token_id)
    assert not checker.may_complete(tokenizer.eos_token_id)


@WITH_PYTHON
def test_ids_beyond_the_tokenizer_complete_nothing(make):
    """Models pad their vocabularies."""
    tokenizer = make()
    checker = Stops.of(tokenizer, ("a",))
    assert not checker.may_complete(len(tokenizer))
    assert not checker.may_complete(10**6)


@WITH_PYTHON
def test_a_stop_that_holds_a_special_token_is_found_where_these_are_shown(make):
    tokenizer = make()
    special = tokenizer.all_special_ids[0]
    name = tokenizer.convert_ids_to_tokens(special)
    output = [*tokenizer.encode("is 16", add_special_tokens=False), special]
    stops = (f"6{name}",)
    shown = Stops.of(tokenizer, stops, special=True)
    assert shown.may_complete(output[-1])
    assert shown.match([], output).stop == stops[0]
    assert shown.match([], output, include_stop=True).text == "is 16" + name
    hidden = Stops.of(tokenizer, stops)
    assert hidden is not shown and hidden.match([], output) is None


def test_stops_are_built_once():
    assert Stops.of(byte_level(), ["a", "b"]) is Stops.of(byte_level(), ("a", "b"))
    assert Stops.of(byte_level(), ("a",)) is not Stops.of(sentence_piece(), ("a",))


def test_ids_in_gaps_and_tokens_that_are_added_later_stop():
    tokenizer = copy.deepcopy(byte_level())
    vocab = {**tokenizer.get_vocab(), "END": 600}  # more than there are tokens
    model = models.BPE(vocab=vocab, merges=[])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    prompt = [tokenizer.convert_tokens_to_ids("x")]
    assert len(tokenizer) < 600
    assert walk(tokenizer, ("END",), prompt, [5, 600])[1].stop == "END"
    added = len(tokenizer)
    while added in tokenizer.get_vocab().values():
        added += 1
    assert walk(tokenizer, ("STOP",), prompt, [5, added]) is None
    tokenizer.add_tokens(["STOP"])
    [token] = tokenizer.encode("STOP", add_special_tokens=False)
    assert walk(tokenizer, ("STOP",), prompt, [5, token])[1].stop == "STOP"
    params = SamplingParams(stop="<end>")
    assert end_tokens(params, tokenizer, ()) == {}
    tokenizer.add_tokens([AddedToken("<end>", special=True)], special_tokens=True)
    assert list(end_tokens(params, tokenizer, ()).values()) == [("stop", "<end>")]


def test_a_list_costs_nothing_to_prepare_however_long_it_is():
    """By the tokens that are looked at: those that were asked about, once each."""
    tokenizer = byte_level()
    stops = tuple(f"stop {i} of many" for i in range(100))
    checker = Stops.of(tokenizer, stops)
    for _ in range(3):
        for token in range(5, 25):
            checker.may_complete(token)
    assert len(checker.harmless) + len(checker._harmful) == 20


def test_end_tokens():
    params = SamplingParams(stop_token_ids=(7, 2))
    ends = end_tokens(params, None, (2, 3))
    assert ends == {2: ("eos", None), 3: ("eos", None), 7: ("stop", 7)}
    deaf = SamplingParams(stop_token_ids=(7, 2), ignore_eos=True)
    assert end_tokens(deaf, None, (2, 3)) == {7: ("stop", 7), 2: ("stop", 2)}


@WITH_PYTHON
def test_a_special_token_is_a_stop_by_its_id(make):
    tokenizer = make()
    name = tokenizer.all_special_tokens[0]
    token = tokenizer.convert_tokens_to_ids(name)
    params = SamplingParams(stop=[name, "Answer:", f"{name} then"], stop_token_ids=(7,))
    assert end_tokens(params, tokenizer, ()) == {token: ("stop", name), 7: ("stop", 7)}
    assert end_tokens(params, tokenizer, (token,))[token] == ("eos", None)
