"""Hypothesis' idea of a job: a random forest of prompts, and a machine that is barely enough."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from sharegen.engine.cache.paths import Paths
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineStats
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.padding import graph_rows
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.jobs import (
    CONTEXT,
    FIRST_TOKEN,
    VOCAB_SIZE,
    CheckedEngine,
    hope_for_the_best,
    make_engine,
    random_tokens,
    swap_always,
)


@dataclass(frozen=True)
class RandomJob:
    """Requests, and the sizes of the engine that runs them.

    blocks: as few as one sample needs, or more. optimistic: admission leaves no room for growth.
    lag: how many steps the host is behind. lookahead: requests whose sharing is looked for
    together. host_blocks: that host memory takes of samples that are preempted. patience: as the
    batch's rows have it on a GPU.
    """

    requests: list[Request]
    blocks: int
    block_size: int
    max_sequences: int
    prefill_tokens: int
    ahead_tokens: int
    ahead_steps: int
    optimistic: bool
    lag: int
    lookahead: int
    host_blocks: int
    patience: float

    def engine(self, model: LoadedModel) -> CheckedEngine:
        engine = make_engine(
            model,
            blocks=self.blocks,
            block_size=self.block_size,
            max_sequences=self.max_sequences,
            prefill_tokens=self.prefill_tokens,
            lookahead=self.lookahead,
            host_blocks=self.host_blocks,
        )
        swap_always(engine)
        engine.scheduler.prefill.ahead_tokens = self.ahead_tokens
        engine.scheduler.prefill.ahead_steps = self.ahead_steps
        engine._lag = self.lag
        if self.patience:
            engine.scheduler.rows.padded = graph_rows
            engine.scheduler.rows._patience = self.patience
        if self.optimistic:
            hope_for_the_best(engine)
        return engine

    def check_counts(self, stats: EngineStats) -> None:
        """Every node is computed once, and again only where that is counted."""
        width, rest = divmod(stats.blocks_total, self.blocks)  # of a full block, in blocks
        assert width and not rest and stats.peak_blocks <= stats.blocks_total
        tree, apart, paths = PrefixTree(self.block_size), 0, Paths(self.block_size)
        for start in range(0, len(self.requests), self.lookahead):
            together = self.requests[start : start + self.lookahead]
            prompts = [request.prompt_token_ids for request in together]
            splits = paths.splits(prompts)
            apart += PrefixTree.build(prompts, self.block_size, splits=splits).num_tokens
            leaves = tree.insert(prompts, splits=splits)
            for request, leaf in zip(together, leaves, strict=True):
                path = sum(up(node.length, self.block_size) for node in leaf.path())
                if path + own_blocks(request, self.block_size) > self.blocks:
                    return  # this one has its prompt to itself
        once = stats.prompt_tokens_computed - stats.prompt_tokens_recomputed
        # What is read later may find gone what was there; without samples, a prompt is not asked.
        assert once <= apart
        if all(request.samples for request in self.requests):
            assert once >= tree.num_tokens
        nodes = sum(up(node.length, self.block_size) for node in tree.nodes())
        own = sum(len(r.samples) * own_blocks(r, self.block_size) for r in self.requests)
        if nodes + own <= self.blocks:  # else prompts that were computed ahead may have to go
            assert stats.prompt_tokens_recomputed == 0


@st.composite
def forests(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that go on from (a part of) an earlier one, or begin anew; some up to the context."""
    prompts: list[list[int]] = []
    for index in range(draw(st.integers(1, 8))):
        stem: list[int] = []
        if prompts and draw(st.booleans()):
            stem = prompts[draw(st.integers(0, len(prompts) - 1))]
            stem = stem[: draw(st.sampled_from([len(stem), len(stem) // 2, len(stem) - 1]))]
        length = draw(st.integers(0, 20) | st.sampled_from([33, 64]))
        own = random_tokens(CONTEXT, random.Random(index))
        prompt = (stem + own[:length])[: CONTEXT - 1] or own[:1]
        if draw(st.integers(0, 15)) == 0:
            prompt = (prompt + own)[: CONTEXT - draw(st.integers(1, 5))]
        prompts.append(prompt)
    return prompts


@st.composite
def params(draw: st.DrawFn, max_tokens: int = 20) -> SamplingParams:
    """Greedy or sampled, with limits and with stop tokens that come sooner or later."""
    often = draw(st.sampled_from([0, 1, 6, 30]))
    stops = range(FIRST_TOKEN, VOCAB_SIZE, VOCAB_SIZE // often) if often else ()
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7, 1.4])),
        max_tokens=draw(st.integers(1, max_tokens)),
        stop_token_ids=list(stops),
        ignore_eos=draw(st.booleans()),
    )


@st.composite
def jobs(draw: st.DrawFn, max_tokens: int = 20) -> RandomJob:
    prompts = draw(forests())
    requests = [
        Request(key, prompt, draw(params(max_tokens)), range(draw(st.integers(0, 5))))
        for key, prompt in enumerate(prompts)
    ]
    block_size = draw(st.sampled_from([1, 2, 3, 4, 7, 16]))
    return RandomJob(
        requests=requests,
        blocks=least_blocks(requests, block_size) + draw(st.integers(0, 12) | st.just(300)),
        block_size=block_size,
        max_sequences=draw(st.sampled_from([1, 2, 3, 5, 17, 40])),
        prefill_tokens=draw(st.sampled_from([1, 5, 16, 64, 512])),
        ahead_tokens=draw(st.sampled_from([0, 50])),
        ahead_steps=draw(st.sampled_from([0, 3])),
        optimistic=draw(st.booleans()),
        lag=draw(st.integers(0, 1)),
        patience=draw(st.sampled_from([0, 0.05, 0.5])),
        lookahead=draw(st.sampled_from([1, 2, 3, 1000])),
        host_blocks=draw(st.sampled_from([0, 3, 300])),
    )


def least_blocks(requests: list[Request], block_size: int) -> int:
    """What the largest of the samples needs: blocks for its prompt and for its own tokens."""
    needs = [
        up(len(request.prompt_token_ids), block_size) + own_blocks(request, block_size)
        for request in requests
    ]
    return max(2, *needs)


def own_blocks(request: Request, block_size: int) -> int:
    """Blocks of a sample's outputs, of which the last is never fed."""
    limit = min(request.params.max_tokens, CONTEXT - len(request.prompt_token_ids))
    return max(1, up(limit - 1, block_size))


def up(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
