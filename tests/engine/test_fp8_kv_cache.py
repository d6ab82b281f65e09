"""An FP8 KV cache: what it holds in 8 bits, that it changes nothing else, and how much fits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.execute.kv_cache import block_format, check_kv_cache_dtype
from sharegen.engine.model.interface import active
from sharegen.engine.model.load import load_model
from sharegen.engine.model.self_check import DenseContext
from sharegen.errors import UsageError
from sharegen.kernels.fp8_blocks import from_fp8, to_fp8
from tests.engine.jobs import (
    CheckedEngine,
    Result,
    assert_empty,
    engine_config,
    forest,
    hope_for_the_best,
    loaded,
    poison,
    random_tokens,
    requests_of,
    run,
)
from tests.engine.random_jobs import RandomJob, jobs
from tests.engine.tiny_models import make_tiny

PARAMS = SamplingParams(temperature=1.2, max_tokens=14, stop_token_ids=[5, 50, 95], n=3)


def engine(name: str = "llama", **config: Any) -> CheckedEngine:
    """config: as `engine_config` takes it; blocks are in full precision."""
    model = loaded(name)
    return CheckedEngine(model, None, engine_config(model, kv_cache_dtype="fp8", **config))


def job(prompts: int | None = None) -> list[Request]:
    """Some prompts with several samples, others with one, or one for all that are asked."""
    ways = [PARAMS, replace(PARAMS, n=1), replace(PARAMS, temperature=0.0, stop_token_ids=[9])]
    return [
        Request(i, prompt, ways[i % 3], range(ways[i % 3].n))
        for i, prompt in enumerate(forest()[:prompts])
    ]


def results(name: str = "llama", requests: list[Request] | None = None, **config: Any) -> dict:
    return run(engine(name, **config), job() if requests is None else requests).results


# -- what is fp8 ---------------------------------------------------------------------------


def test_the_width_of_a_node_is_that_of_the_job() -> None:
    """Told of the whole tree, a part of it marks the same nodes, whatever is left to draw."""
    prompts = forest()
    alone = [i % 2 == 0 for i in range(len(prompts))]
    whole = PrefixTree(4)
    leaves = whole.insert(prompts, alone=alone)
    marked = [leaf.alone for leaf in leaves]
    assert 0 < sum(marked) < sum(alone)  # one that others go on from, or is asked twice, is not
    for leaf, mark in zip(leaves, marked, strict=True):
        assert not mark or (len(leaf.requests) == 1 and not leaf.children)
    for some in (range(0, len(prompts), 2), range(3), [len(prompts) - 1]):
        part = PrefixTree(4)
        found = part.insert(
            [prompts[i] for i in some],
            splits=[leaves[i].splits() for i in some],
            alone=[marked[i] for i in some],
        )
        assert [leaf.alone for leaf in found] == [marked[i] for i in some]


def test_a_prompt_that_one_sample_reads_is_fp8_and_others_are_not() -> None:
    made = engine(block_size=4)
    root = random_tokens(8, random.Random(0))
    own = [root + random_tokens(6, random.Random(i)) for i in (1, 2)]
    ways = [replace(PARAMS, n=1), PARAMS]
    requests = [Request(i, own[i], ways[i], range(ways[i].n)) for i in range(2)]
    made.begin()
    made.add(requests)
    made.step()
    kinds = {
        node.length: (kv.fp8, kv.pool_blocks) for node, kv in made.scheduler.cache.stored.items()
    }
    leaves = [group.leaf for group in made.scheduler._unfinished]
    stored = made.scheduler.cache.stored
    assert kinds[8] == (False, 4)
    assert {leaf.alone: stored[leaf].fp8 for leaf in leaves} == {True: True, False: False}
    assert made.pool.num_used == 2 * 4 + 2 + 2 * 4  # root, alone, and the other's
    made.end()


def test_of_the_same_memory_more_blocks_and_the_bytes_add_up() -> None:
    model = loaded("llama")
    memory = 1 << 20
    wide = block_format(model.layers, torch.bfloat16, "auto")
    fp8 = block_format(model.layers, torch.bfloat16, "fp8")
    assert wide.blocks_per_full == 1 and fp8.blocks_per_full == 2
    heads = sum(layer.num_kv_heads for layer in model.layers)
    assert fp8.token_bytes == wide.token_bytes // 2 + 2 * heads
    config = replace(engine_config(model, kv_cache_dtype="fp8"), kv_cache_memory=memory)
    cache = CheckedEngine(model, None, config).runner.cache
    numbers = sum(t.nbytes for t in (*cache.keys, *cache.values))
    taken = numbers + sum(fp8.exponents.nbytes for fp8 in cache.fp8)
    full_block = (
        block_format(model.layers, model.dtype, "fp8").shared_token_bytes * config.block_size
    )
    assert memory - full_block < taken - full_block <= memory  # without what is scratch


def test_a_gpu_without_fp8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    gpu = torch.device("cuda")
    check_kv_cache_dtype("auto", gpu)
    check_kv_cache_dtype("fp8", torch.device("cpu"))
    with pytest.raises(UsageError, match="sm_86"):
        check_kv_cache_dtype("fp8", gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    check_kv_cache_dtype("fp8", gpu)


def test_what_is_no_dtype() -> None:
    with pytest.raises(UsageError, match=r"kv_cache_dtype is 'int4': it must be 'auto' or 'fp8'"):
        EngineConfig(kv_cache_dtype="int4")


# -- the same tokens, whatever the machine ----------------------------------------------------


@pytest.mark.turn(4)
def test_preemption_changes_nothing() -> None:
    prompts = [random_tokens(length, random.Random(length)) for length in (7, 9)]
    requests = requests_of(prompts, replace(PARAMS, max_tokens=24), samples=9)
    whole = results(requests=requests)
    small = engine(blocks=9)
    hope_for_the_best(small)
    assert run(small, requests).results == whole
    assert small.stats.preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.turn(2)
def test_any_machine(name: str) -> None:
    """Windows, sinks, and values of another size than keys, too."""
    whole = results(name)
    assert results(name, max_sequences=5) == whole
    assert results(name, blocks=28) == whole
    shuffled = job()
    random.Random(1).shuffle(shuffled)
    assert results(name, shuffled, max_sequences=7) == whole
    behind = engine(name, blocks=26, max_sequences=19)
    hope_for_the_best(behind)
    behind._lag = 1
    assert run(behind, job()).results == whole
    assert behind.stats.preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("lookahead", [2, 1000])
@pytest.mark.turn(2)
def test_resuming(lookahead: int) -> None:
    """Whatever is left of the samples: a node is as wide as when all of them were drawn."""
    whole = results(lookahead=lookahead)
    rng = random.Random(lookahead)
    for blocks, rows in [(400, 64), (34, 5), (60, 1)]:
        left = [
            replace(request, samples=[s for s in request.samples if rng.random() > 0.5])
            for request in job()
        ]
        resumed = results(requests=left, lookahead=lookahead, blocks=blocks, max_sequences=rows)
        assert resumed == {key: whole[key] for key in resumed}
    told = PrefixTree(4)
    alone = [request.is_alone(1) for request in job()]
    leaves = told.insert([request.prompt_token_ids for request in job()], alone=alone)
    some = [
        replace(request, splits=leaf.splits(), alone=leaf.alone, samples=request.samples[:1])
        for request, leaf in zip(job(), leaves, strict=True)
    ]
    whole = results()
    found = results(requests=some[1::2])
    assert found == {key: whole[key] for key in found} and len(found) == len(some) // 2


@pytest.mark.slow
def test_the_worst_fragmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences break a full block each, while there is one, and prompts want whole ones."""
    whole = results()
    plain = BlockPool.allocate

    def breaking(pool: BlockPool) -> int | None:
        full_blocks = np.flatnonzero(pool._used == 0)
        if not len(full_blocks):
            return plain(pool)
        block = int(full_blocks[-1]) * pool.blocks_per_full + 1
        pool._take(np.array([block], dtype=np.int32))
        return block

    monkeypatch.setattr(BlockPool, "allocate", breaking)
    for blocks in (22, 30, 60):
        worst = engine(blocks=blocks)
        hope_for_the_best(worst)
        assert run(worst, job()).results == whole
        assert blocks > 30 or worst.stats.preemptions > 0


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=jobs())
def test_random_jobs(drawn: RandomJob) -> None:
    """The books agree after every step, every sample comes once, and whatever the pool the same."""
    model = loaded("llama")
    config = {"block_size": drawn.block_size, "prefill_tokens": drawn.prefill_tokens}
    small = engine(
        blocks=drawn.blocks, max_sequences=drawn.max_sequences, lookahead=drawn.lookahead, **config
    )
    small._lag = drawn.lag
    small.scheduler.prefill.ahead_tokens = drawn.ahead_tokens
    small.scheduler.prefill.ahead_steps = drawn.ahead_steps
    if drawn.optimistic:
        hope_for_the_best(small)
    found = run(small, drawn.requests).results
    if drawn.blocks >= 300 and drawn.lookahead == 1000:
        assert found == results(requests=drawn.requests, blocks=900, **config)
    assert model.kv_bytes_per_token > 0


# -- exact but for the rounding ---------------------------------------------------------------


class RoundedSuffix(DenseContext):
    """Whole sequences whose keys and values are rounded from `start` on, as the cache rounds."""

    def __init__(self, layers: list, length: int, start: int) -> None:
        super().__init__(layers, torch.zeros(length), torch.arange(length))
        self._start = start

    def attend(
        self, layer_idx: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: Any = None
    ) -> torch.Tensor:
        k, v = (torch.cat([x[: self._start], from_fp8(*to_fp8(x[self._start :], 1))])
                for x in (k, v))  # fmt: skip
        return super().attend(layer_idx, q, k, v, sinks)


def said(completion: Completion, name: str) -> float:
    """The log-probability that the model gives the tokens, its own keys and values rounded."""
    model, prompt = loaded(name), list(completion.request.prompt_token_ids)
    ids = torch.tensor([*prompt, *completion.token_ids[:-1]])
    rows = torch.arange(len(prompt) - 1, len(ids))
    context = RoundedSuffix(model.layers, len(ids), len(prompt))
    with torch.inference_mode(), active(context):
        logits = model.forward(ids, torch.arange(len(ids)), rows).double()
    drawn = torch.tensor(completion.token_ids)
    return logits.log_softmax(-1).gather(-1, drawn[:, None]).sum().item()


@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma2", "gpt_oss"))]
)
def test_log_probabilities_are_those_of_the_rounded_numbers(name: str) -> None:
    """A number between two of e4m3's may fall on either side: few do, and not far."""
    params = replace(PARAMS, max_tokens=9, ignore_eos=True, stop_token_ids=())
    ran = run(engine(name), requests_of(forest()[:5], params, samples=3))
    errors = sorted(
        abs(completion.cumulative_logprob - said(completion, name))
        for completion in ran.completions.values()
    )
    assert errors[len(errors) * 3 // 4] < 1e-3 and errors[-1] < 0.5
    wide = CheckedEngine(loaded(name), None, engine_config(loaded(name)))
    exact = run(wide, requests_of(forest()[:5], params, samples=3)).results
    assert exact != ran.results  # it is not the model's dtype in disguise


# -- forks, and what is no number -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("blocks", [9, 400])
def test_forks_go_on_from_fp8_blocks(block_size: int, blocks: int) -> None:
    made = engine(block_size=block_size, blocks=blocks * 16 // block_size)
    greedy = SamplingParams(temperature=0, max_tokens=7, ignore_eos=True)
    prompt = random_tokens(30, random.Random(1))
    requests = [
        Request(i, prompt[: 30 - 10 * i], replace(PARAMS, n=2), range(2), keep=True)
        for i in range(2)
    ]
    done = 0
    for completion in made.generate(requests):
        done += 1
        if completion.request.key < 2:
            made.fork(completion, replace(greedy, n=2))
            forked = [node for node in made.scheduler.cache.tree.nodes() if node.fork]
            stored = made.scheduler.cache.stored
            assert forked and all(stored[n].fp8 for n in forked if n in stored)
    assert done == 4 + 8
    assert_empty(made)


def test_a_sample_without_numbers_fails_alone() -> None:
    model = load_model(make_tiny("qwen2"))  # not the one that tests share
    config = engine_config(model, kv_cache_dtype="fp8")
    requests = requests_of(forest()[:4], replace(PARAMS, stop_token_ids=()), samples=2)

    def outcome() -> dict[tuple[int, int], Result]:
        return run(CheckedEngine(model, None, config), requests).results

    before = outcome()
    bad = before[0, 0][0][3]
    poison(model, bad)
    after = outcome()
    model.release()
    for key, (tokens, _, reason) in after.items():
        hit = bad in before[key][0][:-1] or bad in requests[key[0]].prompt_token_ids
        assert (reason == "error") == hit, key
        assert hit or (tokens, reason) == (before[key][0], before[key][2])
