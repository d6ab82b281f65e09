"""A grid of beam searches over tables of log-probabilities: transformers' own functions decide."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.generation.utils import GenerationMixin

from sharegen.engine.core.beam_search import BeamSearch, Choice, num_candidates
from sharegen.engine.core.request import BeamSearchParams

Text = tuple[int, ...]
Model = Callable[[Text], torch.Tensor]
"""The log-probabilities of what may follow a text."""


def random_model(seed: int, vocab_size: int) -> Model:
    known: dict[Text, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(seed)

    def model(text: Text) -> torch.Tensor:
        if text not in known:
            known[text] = torch.randn(vocab_size, generator=generator).mul(2).log_softmax(-1)
        return known[text]

    return model


def expected(
    model: Model, params: BeamSearchParams, limit: int, ends: frozenset[int]
) -> list[tuple[list[int], float]]:
    """The loop of `GenerationMixin._beam_search`, with its own functions."""
    rules: Any = GenerationMixin()
    width = params.beam_width
    candidates = max(2, 1 + len(ends)) * width
    running = torch.full((1, width, limit), -1)
    running_beams = torch.full((1, width, limit), -1, dtype=torch.int32)
    texts, beams = running.clone(), running_beams.clone()
    scores = torch.full((1, width), -1e9)
    running_scores = torch.tensor([[0.0] + [-1e9] * (width - 1)])
    finished = torch.zeros(1, width, dtype=torch.bool)
    can_improve = torch.ones(1, 1, dtype=torch.bool)
    mask = torch.arange(candidates) < width
    for length in range(limit):
        told = torch.stack([model(tuple(b[:length].tolist())) for b in running[0]])[None]
        top, continued, continued_beams = rules._get_top_k_continuations(
            (told + running_scores[:, :, None]).reshape(1, -1), running, running_beams, length, 0,
            False, candidates, width, 1,
        )  # fmt: skip
        hits = torch.isin(continued[:, :, length], torch.tensor(sorted(ends), dtype=torch.long))
        hits |= torch.tensor(length + 1 == limit)
        running, running_scores, running_beams = rules._get_running_beams_for_next_iteration(
            top, continued, continued_beams, hits, width
        )
        texts, scores, beams, finished = rules._update_finished_beams(
            texts, continued, scores, top, beams, continued_beams, can_improve, finished, hits,
            mask, width, length, 0, params.length_penalty, params.early_stopping,
        )  # fmt: skip
        can_improve = rules._check_early_stop_heuristic(
            can_improve, running_scores, scores, finished, length + 1, limit, 0,
            params.early_stopping, params.length_penalty,
        )  # fmt: skip
        if not rules._beam_search_has_unfinished_sequences(
            can_improve, finished, hits, params.early_stopping
        ):
            break
    return [
        ([token for token in text if token >= 0], score)
        for text, score in zip(texts[0].tolist(), scores[0].tolist(), strict=True)
    ]


def greedy(model: Model, limit: int, ends: frozenset[int]) -> list[int]:
    text: list[int] = []
    while len(text) < limit and not (text and text[-1] in ends):
        text.append(int(model(tuple(text)).argmax()))
    return text


def found(
    model: Model, params: BeamSearchParams, limit: int, ends: frozenset[int]
) -> list[tuple[list[int], float]]:
    search: BeamSearch[Text] = BeamSearch(params, limit)
    beams: list[Text] = [()]
    count = num_candidates(params.beam_width, len(ends))
    while beams:

        def end_of(choice: Choice, beams: list[Text] = beams) -> Text | None:
            text = (*beams[choice.parent], choice.token)
            return text if choice.token in ends or len(text) == limit else None

        told = []
        for beam in beams:
            values, tokens = model(beam).topk(min(count, len(model(beam))))
            told.append(list(zip(tokens.tolist(), values.tolist(), strict=True)))
        choices = search.advance(told, len(ends), end_of)
        beams = [(*beams[choice.parent], choice.token) for choice in choices]
    return [(list(ended.end), ended.score) for ended in search.ended]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [-3.0, -0.5, 0.0, 0.5, 1.0, 4.0])
def test_a_grid_of_searches(early_stopping: Any, length_penalty: float) -> None:
    rng = random.Random(f"{early_stopping} {length_penalty}")
    for width in (1, 2, 3, 5):
        for limit in (1, 4, 9):
            size = rng.choice([12, 30])
            ends = frozenset(rng.sample(range(size), rng.choice([0, 1, 3])))
            model = random_model(rng.randrange(10**6), size)
            params = BeamSearchParams(
                width, limit, early_stopping=early_stopping, length_penalty=length_penalty
            )
            own = found(model, params, limit, ends)
            if width == 1:  # which generate() takes for a greedy decoding
                assert [text for text, _ in own] == [greedy(model, limit, ends)]
                continue
            theirs = expected(model, params, limit, ends)
            assert [text for text, _ in own] == [text for text, _ in theirs]
            assert [s for _, s in own] == pytest.approx([s for _, s in theirs], rel=1e-5)
