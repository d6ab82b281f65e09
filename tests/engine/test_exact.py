"""The oracle: greedy tokens equal transformers' own generate(), however they were computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from sharegen.engine.cache.block_pool import BlockPool
from tests.engine.jobs import (
    GREEDY,
    CheckedEngine,
    forest,
    hope_for_the_best,
    judge,
    loaded,
    make_engine,
    original,
    requests_of,
    run,
)

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "gpt_neox", "gpt2"]
PROMPTS = forest()


@cache
def generated(name: str) -> list[list[int]]:
    """What generate() makes of PROMPTS, one at a time: no padding, no other way to be wrong."""
    model = original(name)
    model.generation_config.eos_token_id = None
    outputs = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        whole = model.generate(ids, max_new_tokens=GREEDY.max_tokens, do_sample=False)
        outputs.append(whole[0, len(prompt) :].tolist())
    return outputs


def plain(engine: CheckedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it comes: all at once."""


def expect_nothing(engine: CheckedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission leaves no room for growth: blocks run out, and the youngest are preempted."""
    hope_for_the_best(engine)


def fragment(engine: CheckedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two blocks in a row are free for a node: all nodes longer than a block are scattered."""
    monkeypatch.setattr(BlockPool, "allocate_full_blocks", _every_other_block)


def one_step_behind(engine: CheckedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host reads tokens a step late, as it does beside a GPU."""
    expect_nothing(engine, monkeypatch)
    engine._lag = 1


def _every_other_block(pool: BlockPool, count: int) -> tuple[np.ndarray, bool] | None:
    free = np.flatnonzero(pool._owners == 0)[::-2][:count].astype(np.int32)
    if len(free) < count:
        return None
    pool._take(free)
    return free, len(free) == 1


SETTINGS: dict[str, tuple[Callable, dict[str, int]]] = {
    "plain": (plain, {}),
    "few slots": (plain, {"max_sequences": 3, "prefill_tokens": 7}),
    "preemption": (expect_nothing, {"blocks": 45}),
    "tiny pool": (plain, {"blocks": 26, "max_sequences": 7}),
    "scattered nodes": (fragment, {}),
    "one step behind": (one_step_behind, {"blocks": 45, "max_sequences": 7}),
}


def is_depth(setting: str, name: str) -> bool:
    """Memory and rows are dealt with alike where attention is, which these have as llama has it."""
    return setting != "plain" and name in ("qwen2", "qwen3", "phi3", "gpt_neox")


def check_against_generate(name: str, engine: CheckedEngine) -> int:
    """Assert that the engine's greedy tokens are generate()'s; returns how many prompts tie."""
    ran = run(engine, requests_of(PROMPTS, GREEDY))
    ties = 0
    for (key, _), completion in ran.completions.items():
        judged = judge(completion, name)
        if completion.token_ids != generated(name)[key]:
            assert judged > 0, f"{name}: prompt {key} differs from generate(), and not by a tie"
            ties += 1
    return ties


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        pytest.param(setting, name, marks=[pytest.mark.slow] if is_depth(setting, name) else [])
        for setting in SETTINGS
        for name in ARCHITECTURES
    ],
)
@pytest.mark.turn(10)
def test_greedy_tokens_equal_generate(
    setting: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    prepare, config = SETTINGS[setting]
    engine = make_engine(loaded(name), **config)
    prepare(engine, monkeypatch)
    record_property("ties", check_against_generate(name, engine))
    if setting in ("preemption", "one step behind"):
        assert engine.stats.preemptions > 0
    if setting == "few slots":
        assert engine.stats.decode_steps > 3 * GREEDY.max_tokens


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.turn(6)
def test_any_block_size(
    name: str, block_size: int, record_property: Callable[[str, object], None]
) -> None:
    engine = make_engine(loaded(name), block_size=block_size, blocks=1200 // block_size)
    record_property("ties", check_against_generate(name, engine))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 32])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.turn(9)
def test_every_setting_with_every_block_size(
    name: str,
    block_size: int,
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    prepare, config = SETTINGS[setting]
    # As many tokens as with blocks of four, and room for what blocks leave empty.
    blocks = -(-config.get("blocks", 400) * 4 // block_size) + (8 if block_size > 4 else 0)
    engine = make_engine(loaded(name), **(config | {"block_size": block_size, "blocks": blocks}))
    prepare(engine, monkeypatch)
    record_property("ties", check_against_generate(name, engine))
