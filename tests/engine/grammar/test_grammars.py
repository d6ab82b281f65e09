"""Random walks through masks, without a model: what is decoded is of the grammar."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.grammar.grammars import Grammars
from sharegen.engine.text.detokenize import completion_text
from tests.engine.structured import parses
from tests.engine.tokenizers_for_tests import byte_level, sentence_piece

ASKED = [
    {"regex": "(?:[A-Z][a-z]{1,6} ){1,3}[0-9]{1,3}[.]?"},
    {"choice": ["Wie geht's?", "日本 🙂", " Janet has", "16 - 3"]},
    {"json": {"type": "object", "properties": {"a b": {"type": "string", "maxLength": 6}},
              "required": ["a b"], "additionalProperties": False}},
]  # fmt: skip


def allowed(mask: np.ndarray, size: int) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask, bitorder="little")[:size]).tolist()


@pytest.mark.parametrize("tokenizer", [byte_level(), sentence_piece()], ids=["bytes", "pieces"])
@pytest.mark.parametrize("values", ASKED)
@pytest.mark.parametrize("prompt", ["Answer:", "Question: Janet has 3 ducks."])
def test_random_walks_end_in_texts_of_the_grammar(
    tokenizer: Any, values: dict[str, Any], prompt: str
) -> None:
    size, eos = len(tokenizer) + 3, tokenizer.eos_token_id
    grammars = Grammars(tokenizer, [eos], size)
    asked = StructuredOutputsParams(**values)
    ids = tokenizer.encode(prompt)
    request = Request(0, ids, SamplingParams(structured_outputs=asked), range(1))
    grammars.check(request)
    rng, ended = random.Random(0), 0
    for _ in range(12):
        matcher, tokens = grammars.begin(request), []
        for _ in range(60):
            left = allowed(grammars.masks([matcher])[0], size)
            assert left and max(left) < len(tokenizer)
            token = rng.choice(left)
            if token == eos:
                assert parses(completion_text(tokenizer, ids, tokens), asked)
                ended += 1
                break
            tokens.append(token)
            matcher.take([token])
    assert ended > 5


def test_what_ends_a_sample_is_allowed_where_its_text_is_complete_and_nowhere_else() -> None:
    tokenizer = byte_level()
    eos, [a] = tokenizer.eos_token_id, tokenizer.encode("a", add_special_tokens=False)
    [b] = tokenizer.encode("b", add_special_tokens=False)
    params = SamplingParams(structured_outputs={"regex": "ab?"}, stop_token_ids=[b])  # type: ignore[arg-type]
    grammars = Grammars(tokenizer, [eos, 0], len(tokenizer))
    matcher = grammars.begin(Request(0, [a], params, range(1)))
    assert allowed(grammars.masks([matcher])[0], len(tokenizer)) == [a]
    matcher.take([a])
    assert allowed(grammars.masks([matcher])[0], len(tokenizer)) == sorted([0, eos, b])
