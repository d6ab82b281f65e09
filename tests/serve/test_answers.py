"""A stream's chunks beside the answer as a whole, however the tokens come."""

from __future__ import annotations

import itertools

from sharegen.engine.core.request import SamplingParams, TokenLogprobs
from sharegen.engine.text.vocabulary import Vocabulary
from sharegen.results.export.openai import Answerer
from sharegen.serve.answers import ServedAnswer
from sharegen.serve.asked import Delivery, ParsedRequest
from sharegen.serve.ticket import Grown, News
from tests.tiny import tiny_tokenizer


def test_only_the_first_token_may_have_lost_its_space() -> None:
    """A piece of a character is told with no text; the word behind it keeps its space."""
    tokenizer = tiny_tokenizer()
    spell = Vocabulary.of(tokenizer).utf8
    [piece] = [each for each in range(len(tokenizer)) if spell(each) == b"\xe2"]
    word = next(each for each in range(len(tokenizer)) if (spell(each) or b"")[:1] == b" ")
    params = SamplingParams(max_tokens=4, logprobs=1)
    asked = ParsedRequest("text", [[5]], [None], params, Delivery(stream=True), None, False)
    requests = asked.requests(itertools.count().__next__)
    by = Answerer("m", "f", 0)
    answer = ServedAnswer(asked, requests, "cmpl-1", lambda: by, tokenizer, spell)
    told = []
    for tokens in ([piece], [word, word]):
        grown = Grown(tokens, [TokenLogprobs(token, -1.0, {token: -1.0}) for token in tokens])
        for chunk in answer.chunks(News(grown={(requests[0].key, 0): grown})):
            told += chunk["choices"][0]["logprobs"]["tokens"]
    assert told == ["bytes:\\xe2", *[(spell(word) or b"").decode()] * 2]
