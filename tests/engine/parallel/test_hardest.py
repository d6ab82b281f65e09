"""Of many requests those that tell whether any is refused."""

from __future__ import annotations

import random

import pytest

from sharegen.engine.core.request import BeamSearchParams, Request, SamplingParams
from sharegen.engine.parallel.hardest import hardest


def is_refused(request: Request, context: int, vocabulary: int) -> bool:
    prompt = list(request.prompt_token_ids)
    longest = len(prompt) + (request.params.max_tokens or 1) - request.fills_context
    return not prompt or longest > context or min(prompt) < 0 or max(prompt) >= vocabulary


@pytest.mark.slow
def test_one_of_them_is_refused_if_any_is() -> None:
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        kinds = [SamplingParams(max_tokens=rng.choice([None, 1, 40, 60])) for _ in range(3)]
        beam = BeamSearchParams(beam_width=2, max_tokens=4)
        requests = [
            Request(
                key,
                [rng.randrange(-1 if rng.random() < 0.01 else 0, 100) for _ in range(length)],
                params,
                range(2),
                fills_context=rng.random() < 0.2,
                beam=rng.choice([None, beam]),
            )
            for key, (length, params) in enumerate(
                (rng.randrange(1 - (rng.random() < 0.02), 50), rng.choice(kinds)) for _ in range(60)
            )
        ]
        context, vocabulary = rng.randrange(60, 120), rng.choice([99, 100])
        asked = hardest(requests)
        some = any(is_refused(request, context, vocabulary) for request in requests)
        assert some == any(is_refused(request, context, vocabulary) for request in asked)
        assert len(asked) <= 4 * len(kinds) * 4
        refused += some
    assert 50 < refused < 250


def test_none() -> None:
    assert hardest([]) == []
