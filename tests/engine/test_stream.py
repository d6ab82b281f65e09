"""Requests without end: what the engine holds of them is a lookahead and the live ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sharegen.engine.core.request import Request, SamplingParams
from tests.engine.jobs import FIRST_TOKEN, GREEDY, VOCAB_SIZE, loaded, make_engine

LOOKAHEAD = 256
ROWS = 256


class Source:
    """One-token prompts, read one by one; `alive` counts those that something still holds."""

    def __init__(self, count: int, params: SamplingParams) -> None:
        self.count = count
        self.params = params
        self.read = 0

    def __iter__(self) -> Iterator[Request]:
        for index in range(self.count):
            self.read += 1
            token = FIRST_TOKEN + index % (VOCAB_SIZE - FIRST_TOKEN)
            yield Request(index, [token], self.params, range(1))


def alive() -> int:
    gc.collect()
    return sum(type(thing) is Request for thing in gc.get_objects())


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.turn(10))])
@pytest.mark.slow
def test_prompts_without_end_in_the_memory_of_a_window(count: int) -> None:
    source = Source(count, replace(GREEDY, max_tokens=1))
    engine = make_engine(
        loaded("llama"), max_sequences=ROWS, lookahead=LOOKAHEAD, prefill_tokens=512, blocks=1200
    )
    before = alive()
    done = most = 0
    for completion in engine.generate(source):
        done += 1
        assert len(completion.token_ids) == 1
        if done % min(2_500, count // 4) == 0:
            most = max(most, alive() - before)
            assert sum(1 for _ in engine.scheduler.cache.tree.nodes()) <= LOOKAHEAD + ROWS
    assert done == source.read == count
    assert most <= 2 * LOOKAHEAD + ROWS  # the completions of one step are there, too
    assert alive() <= before + 1


@pytest.mark.parametrize("lookahead", [1, 2, 7, 1000])
@pytest.mark.turn(8)
def test_tokens_do_not_depend_on_the_window(lookahead: int) -> None:
    def tokens(lookahead: int) -> dict[int, list[int]]:
        source = Source(60, replace(GREEDY, max_tokens=5))
        engine = make_engine(loaded("llama"), max_sequences=8, lookahead=lookahead)
        drawn = {}
        for completion in engine.generate(source):
            drawn[completion.request.key] = completion.token_ids
            assert source.read <= len(drawn) + 8 + 1.5 * lookahead + 2
        return drawn

    assert tokens(lookahead) == tokens(16_384)
