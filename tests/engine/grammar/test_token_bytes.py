"""The masks' table of tokens: the bytes that each writes, also where its file says otherwise."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken

from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.grammar.token_bytes import vocabulary_of
from sharegen.engine.text.detokenize import decode
from sharegen.engine.text.vocabulary import Vocabulary
from tests.engine.tokenizers_for_tests import byte_level, sentence_piece

ADDED = {
    "normalised": ['"}'],
    "as it is": [AddedToken('"}', normalized=False)],
    "special": [AddedToken('"}', special=True)],
    "many": [' "}', "é", '▁"', 'Ġ"', AddedToken('":', normalized=False), '","', "<|tool|>"],
}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "xé"]}, "b": {"type": "string", "pattern": "^[a-z]{1,3}$"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def with_added(make: Any, tokens: Sequence[Any]) -> Any:
    tokenizer = deepcopy(make())
    tokenizer.add_tokens(list(tokens), special_tokens=bool(getattr(tokens[0], "special", False)))
    return tokenizer


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("make", [sentence_piece, byte_level])
def test_every_token_has_the_bytes_that_it_writes(make: Any, added: str) -> None:
    tokenizer = with_added(make, ADDED[added])
    table = vocabulary_of(tokenizer, len(tokenizer) + 5, [tokenizer.eos_token_id])
    known = Vocabulary.of(tokenizer)
    for token in range(len(tokenizer)):
        if not table.is_special_token(token):
            assert table.decode_bytes([token]) == known.utf8(token)
    assert table.eos_tokens == [tokenizer.eos_token_id]
    assert table.vocab_size >= len(tokenizer) + 5


@pytest.mark.parametrize("added", ADDED)
def test_texts_that_end_are_of_the_schema(added: str) -> None:
    """Drawn at random, the added tokens wherever they may be."""
    tokenizer = with_added(sentence_piece, ADDED[added])
    own = list(range(len(sentence_piece()), len(tokenizer)))
    grammars = Grammars(tokenizer, [tokenizer.eos_token_id], len(tokenizer))
    asked = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    request = Request(0, [5], SamplingParams(structured_outputs=asked), range(1))
    ended, used = 0, set()
    for seed in range(40):
        rng, matcher, tokens = random.Random(seed), grammars.begin(request), list[int]()
        while len(tokens) < 60:
            [mask] = grammars.masks([matcher])
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            assert allowed
            token = rng.choice([token for token in own if token in allowed] or allowed)
            if token == tokenizer.eos_token_id:
                jsonschema.validate(json.loads(decode(tokenizer, tokens)), SCHEMA)
                ended += 1
                break
            tokens.append(token)
            matcher.take([token])
        used.update(tokens)
    assert ended == 40
    if added == "many":
        assert used & set(own)
