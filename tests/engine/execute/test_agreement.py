"""Ranks that are about to run different steps, and the first thing that differs."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from sharegen.engine.core.batch import Drawing
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.execute.agreement import VARIABLE, Agreement, RanksDiffer, asked, digest
from sharegen.engine.model.tensor_parallel.ranks import Ranks


class Said:
    """Ranks of which the others say what they are given to say."""

    def __init__(self, *others: str | None) -> None:
        self.others = others

    def all_of(self, text: str) -> list[str]:
        return [text, *(text if other is None else other for other in self.others)]


def agreement(*others: str | None) -> Agreement:
    return Agreement(cast(Ranks, Said(*others)))


def test_names_the_first_step_and_what_differs() -> None:
    checked = agreement(None, None)
    checked.check(batch=[1], tokens=torch.arange(3))
    ranks = checked._ranks
    cast(Any, ranks).others = (None, f"{digest([1])} {digest(torch.arange(1, 4))}")
    with pytest.raises(RanksDiffer, match=r"step 1: tokens differs: rank 0 has \w+, rank 2 \w+"):
        checked.check(batch=[1], tokens=torch.arange(3))


def test_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not asked()
    monkeypatch.setenv(VARIABLE, "1")
    assert asked()


def test_a_digest_is_of_the_content_alone() -> None:
    def drawing(**changed: Any) -> Drawing:
        prompt = np.array([3, 4], dtype=np.int32)
        return Drawing(SamplingParams(stop=["a"], **changed), 7, prompt)

    assert digest([drawing(), drawing()]) == digest([drawing()] * 2)
    others = (drawing(seed=1), Drawing(SamplingParams(stop=["a"]), 7, np.array([3, 4])))
    assert len({digest(drawing()), *map(digest, others)}) == 3
    assert digest(np.zeros(4, dtype=np.int32)) != digest(np.zeros((2, 2), dtype=np.int32))
    assert digest(torch.arange(3)) == digest(np.arange(3)) != digest(np.arange(3)[::-1])
