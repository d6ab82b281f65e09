"""Filters: what the search for a threshold leaves, against the torch reference."""

from __future__ import annotations

import math

import pytest
import torch

from sharegen.kernels import threshold
from tests.kernels.test_draw import GREEDY, Rows, random_logits


@pytest.mark.parametrize("vocab_size", [37, 5003])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_k": 17},
        {"top_p": 0.9},
        {"top_p": 0.05},
        {"top_p": 0.9999},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 2.0, "top_k": 33, "top_p": 0.95},
        {"temperature": 0.1, "top_p": 0.99},
        GREEDY,
    ],
)
@pytest.mark.turn(10)
def test_filters(vocab_size: int, options: dict[str, float]) -> None:
    rows = Rows(random_logits(4, vocab_size), **options)
    assert rows.check() < 3


@pytest.mark.slow
def test_a_nucleus_too_large_to_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "CAPACITY", 256)
    monkeypatch.setattr(threshold, "SEARCH_BLOCK", 256)
    logits = random_logits(3, 3000, scale=0.05)
    for options in ({"top_p": 0.6}, {"top_k": 1500}, {"top_k": 1500, "top_p": 0.5}):
        assert Rows(logits, **options).check() < 3


@pytest.mark.parametrize("ties", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_more_ties_than_are_put_aside(ties: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "CAPACITY", 256)
    monkeypatch.setattr(threshold, "SEARCH_BLOCK", 256)
    logits = random_logits(3, 3000)
    logits[:, 100 : 100 + ties] = 0.25
    for options in ({"top_p": 0.8}, {"top_k": 1300}, {"top_k": 1300, "top_p": 0.9}):
        assert Rows(logits, **options).check() < 3


def test_infinite_logits_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold, "CAPACITY", 256)
    monkeypatch.setattr(threshold, "SEARCH_BLOCK", 256)
    logits = random_logits(2, 600)
    logits[0, 17] = torch.inf
    logits[1] = -torch.inf
    tokens, _ = Rows(logits, top_k=5, top_p=0.5).drawn()
    assert ((tokens >= 0) & (tokens < 600)).all()


@pytest.mark.slow
@pytest.mark.parametrize("barred", [torch.finfo(torch.float32).min, -300.0])
@pytest.mark.parametrize("options", [{"top_k": 50}, {"top_p": 0.9}, {"top_k": 290, "top_p": 0.9}])
@pytest.mark.turn(5)
def test_finite_numbers_that_bar_tokens(barred: float, options: dict[str, float]) -> None:
    """As biases and models do: the search does not begin that far below."""
    logits = random_logits(4, 300)
    logits[:, 5:60] = barred
    rows = Rows(logits, **options)
    assert rows.check() < 3
    assert len(set(rows.drawn()[0].tolist())) > 2


@pytest.mark.slow
def test_all_ties_stay() -> None:
    logits = torch.zeros(24, 500)
    logits[:, 7] = 1.0
    for options in ({"top_k": 2}, {"top_p": 0.01}, {"min_p": math.exp(-1.001)}):
        assert Rows(logits, **options).drawn()[0].unique().numel() > 18
    assert Rows(logits[:9], top_p=0.005).drawn()[0].unique().tolist() == [7]
    assert Rows(logits[:9], top_k=1).drawn()[0].unique().tolist() == [7]
