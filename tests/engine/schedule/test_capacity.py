"""What never fits is refused, or not shared where sharing would not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharegen.errors import CapacityError
from tests.engine.jobs import assert_empty, requests_of, run
from tests.engine.schedule.test_scheduler import PARAMS, spelling_engine


def test_a_path_that_does_not_fit_is_not_shared() -> None:
    """Each part of the path rounds up to blocks: three of five tokens need six blocks of four,
    and the same fifteen tokens in one node four."""
    stem = [5] * 5
    prompts = [stem, stem + [6] * 5, stem + [6] * 5 + [7] * 5]
    requests = requests_of([*prompts, prompts[-1]], replace(PARAMS, max_tokens=8), samples=2)
    for blocks, computed in ((8, 15), (7, 10 + 15), (6, 10 + 15)):
        engine = spelling_engine(requests, blocks=blocks)
        for request in requests:
            engine.check(request)
        stats = run(engine, requests).stats
        assert stats.prompt_tokens_computed - stats.prompt_tokens_recomputed == computed


def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    requests = requests_of([[5] * 5, [6] * 15], replace(PARAMS, max_tokens=8))
    engine = spelling_engine(requests, blocks=5)
    with pytest.raises(CapacityError, match=r"holds 5 blocks of 4 tokens, but one sample needs 6"):
        list(engine.generate(requests))
    assert_empty(engine)
    run(engine, requests[:1])
