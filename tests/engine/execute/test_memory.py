"""How large the KV cache is: numbers in, blocks out; and what the largest step runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute import headroom
from sharegen.engine.execute.headroom import largest_step
from sharegen.engine.execute.memory import (
    blocks_in,
    check_fits,
    estimate,
    free_memory_of_cpu,
    left_again,
    left_beside,
)
from sharegen.engine.model.load import load_model
from sharegen.errors import CapacityError
from tests.engine.jobs import loaded

GIB = 1 << 30


def test_what_the_largest_steps_and_the_margin_leave() -> None:
    assert left_beside(3 * GIB, 100 * GIB, 140 * GIB) == 97 * GIB - int(140 * GIB * 0.015)
    assert left_beside(GIB, 6 * GIB, 8 * GIB) == 5 * GIB - GIB // 2  # no margin below half a GiB
    assert left_beside(7 * GIB, 6 * GIB, 8 * GIB) == 0


def test_what_a_cache_has_again_after_others_have_grown() -> None:
    total, free, steps = 140 * GIB, 100 * GIB, 3 * GIB
    had = left_beside(steps, free, total)
    assert left_again(had, free, free, total, steps) == had
    assert left_again(had, free, free - 30 * GIB, total, steps) == had - 30 * GIB
    assert left_again(had, free, GIB, total, steps) == 0
    assert left_again(had, free, free + 9 * GIB, total, steps) == had  # no more than it had
    small = 4 * GIB  # as was asked for: nothing of the other 96 is needed
    assert left_again(small, free, 50 * GIB, total, steps) == small
    assert left_again(small, free, 7 * GIB, total, steps) < small


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 1 << 24))
def test_blocks_steps_and_margin_fit_what_is_free(free: int, steps: int, block: int) -> None:
    total = 1 << 40
    left = left_beside(steps, free, total)
    assert left == 0 or left + steps + int(total * 0.015) <= free
    if left >= 2 * block:
        assert blocks_in(left, block) * block <= left < (blocks_in(left, block) + 1) * block
    else:
        with pytest.raises(CapacityError, match="does not even hold two blocks"):
            blocks_in(left, block)


def test_a_given_cache_must_fit_what_is_free() -> None:
    check_fits(GIB, GIB, "in this machine")
    with pytest.raises(CapacityError, match=r"of 1,073,741,825 bytes does not fit: .* give"):
        check_fits(GIB + 1, GIB, "in this machine")
    with pytest.raises(CapacityError, match="in this machine are"):
        Engine(loaded("llama"), None, EngineConfig(kv_cache_memory=1 << 60))


def test_a_limit_cuts_what_nobody_has_set() -> None:
    model = loaded("llama")
    block = 16 * model.kv_bytes_per_token
    free = estimate(torch.device("cpu"))
    for limit, memory, blocks in (
        (40 * block, None, 40),
        (10 * free, None, free // block),
        (40 * block, 70 * block, 70),  # what somebody asks for, he gets
    ):
        config = EngineConfig(kv_cache_limit=limit, kv_cache_memory=memory)
        assert Engine(model, None, config).pool.num_blocks == blocks


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_oss", "llama4", "gemma2"])
@pytest.mark.parametrize(("tokens", "rows"), [(600, 40), (8, 40)])
def test_the_largest_step_runs_every_filter(
    name: str, tokens: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the context, whose positions some models look up, and with more rows than tokens."""
    model, seen = loaded(name), []
    real = headroom.sample

    def sample(logits: torch.Tensor, state: headroom.SamplingState, *rest: object, **how: object):  # type: ignore[no-untyped-def]
        seen.append((tuple(logits.shape), state.features()))
        return real(logits, state, *rest, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(headroom, "sample", sample)
    largest_step(model, tokens, rows)
    [(shape, features)] = seen
    assert shape == (rows, model.vocab_size)
    assert features.filtered and features.penalised and features.repeats
    assert features.top_logprobs == 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_room_for_the_largest_steps() -> None:
    shape = LlamaConfig(
        vocab_size=32_000, hidden_size=512, intermediate_size=1024, num_hidden_layers=16,
        num_attention_heads=8, num_key_value_heads=8, head_dim=128,
    )  # fmt: skip
    model = load_model(LlamaForCausalLM(shape).to("cuda", torch.bfloat16))
    engine = Engine(model, None, EngineConfig(max_sequences=64, prefill_tokens=1024, compile=False))
    free, total = torch.cuda.mem_get_info()
    assert 0.01 * total < free < 0.1 * total + (1 << 30)
    largest_step(model, 1024, 64)
    request = Request(0, [5, 6, 7], SamplingParams(max_tokens=8), range(64))
    assert len(list(engine.generate([request]))) == 64 and engine.stats.shrinks == 0
    model.release()


def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\nHugepages: 0\n")
    monkeypatch.setattr("sharegen.engine.execute.memory._MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("sharegen.engine.execute.memory._CGROUP", tmp_path)
    assert free_memory_of_cpu() == 3000 << 10
    (tmp_path / "memory.stat").write_text("anon 700000\nfile 900000\n")
    for limit, free in (("max", 3000 << 10), ("1700000", 1_000_000), ("9", 0)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert free_memory_of_cpu() == free
