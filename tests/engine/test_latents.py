"""Latent attention: what samples alone read lies as latents, and no token differs for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.kv_cache import block_format
from sharegen.engine.model.compile.stacking import decoder_layers
from sharegen.engine.model.fp8.products import EMULATE
from sharegen.engine.model.load import load_model
from sharegen.kernels.cost import most_latent_readers
from tests.engine.jobs import (
    CheckedEngine,
    engine_config,
    forest,
    hope_for_the_best,
    judge,
    loaded,
    make_engine,
    run,
    swap_always,
)
from tests.engine.tiny_models import TINY, make_tiny, tiny_config

LATENT = [
    name
    for name in (
        "bailing_hybrid", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear",
        "longcat_flash", "minicpm3", "youtu",
    )
    if name in TINY
]  # fmt: skip
PARAMS = SamplingParams(temperature=1.2, max_tokens=14, stop_token_ids=[5, 50, 95], n=3)


def job(prompts: int | None = None) -> list[Request]:
    """Some prompts with several samples, others with one, or one for all that are asked."""
    ways = [PARAMS, replace(PARAMS, n=1), replace(PARAMS, temperature=0.0, stop_token_ids=[9])]
    return [
        Request(i, prompt, ways[i % 3], range(ways[i % 3].n))
        for i, prompt in enumerate(forest()[:prompts])
    ]


def results(engine: CheckedEngine) -> dict[tuple[int, int], Any]:
    return run(engine, job()).results


@pytest.mark.turn(3)
@pytest.mark.parametrize("name", LATENT)
def test_every_token_is_the_model_s_own(name: str) -> None:
    engine = make_engine(loaded(name))
    assert engine.pool.blocks_per_full == 4  # 72 numbers are spread out of 20
    ran = run(engine, job(None if name == "deepseek_v3" else 6))
    assert sum(judge(completion, name) for completion in ran.completions.values()) == 0


@pytest.mark.parametrize("name", LATENT)
def test_the_probe_finds_the_latent(name: str) -> None:
    for layer in loaded(name).layers:
        assert layer.latent is not None
        assert (layer.latent.rank, layer.latent.of_latent) == (16, 8)


def test_a_token_takes_what_its_latent_does() -> None:
    layers = loaded("deepseek_v3").layers
    made_of = block_format(layers, torch.float32, "auto")
    assert made_of.latents and made_of.token_bytes == 2 * 20 * 4
    assert made_of.shared_token_bytes == 4 * made_of.token_bytes  # no less than 2 * 72 * 4
    assert block_format(layers, torch.bfloat16, "auto").token_bytes == 2 * 24 * 2  # padded
    fp8 = block_format(layers, torch.float32, "fp8")
    assert not fp8.latents and fp8.blocks_per_full == 4
    assert not block_format(loaded("llama").layers, torch.float32, "auto").latents


@pytest.mark.turn(3)
def test_fp8_weights_leave_latents_as_they_are_and_a_plan_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    config = tiny_config("deepseek_v3")
    config.v_head_dim = 8  # of which the layer that spreads latents out would fit FP8
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for weights in (True, False):
        plain = load_model(tmp_path, device="cpu", weights=weights)
        fp8 = load_model(tmp_path, device="cpu", weights=weights, quantization="fp8")
        assert all(layer.latent is not None for layer in plain.layers)
        assert [layer.latent for layer in fp8.layers] == [layer.latent for layer in plain.layers]
        assert fp8.weights_bytes < plain.weights_bytes


@pytest.mark.slow
@pytest.mark.turn(4)
def test_in_the_memory_of_few_blocks_samples_are_preempted_and_nothing_changes() -> None:
    model = loaded("deepseek_v3")
    expected = results(make_engine(model))
    for host_blocks in (0, 100):
        engine = make_engine(model, blocks=32, host_blocks=host_blocks)
        hope_for_the_best(engine)
        if host_blocks:
            swap_always(engine)
        assert results(engine) == expected
        assert engine.stats.preemptions > 0
        assert (engine.stats.swaps > 0) == (host_blocks > 0)


@pytest.mark.turn(3)
def test_a_batch_of_any_size_gives_the_same_bits() -> None:
    model = loaded("deepseek_v3")
    expected = results(make_engine(model))
    for rows in (3, 17):
        assert results(make_engine(model, max_sequences=rows)) == expected


def test_a_model_is_given_back_as_it_came() -> None:
    model = load_model(make_tiny("deepseek_v3"))
    layers = [m for m in model.model.modules() if isinstance(m, nn.Linear)]
    model.release()
    assert not any("forward" in vars(layer) for layer in layers)


def test_prompts_of_few_samples_are_latents_where_that_takes_no_longer() -> None:
    assert most_latent_readers(20, 512, 512, 576) == 8  # GLM-4.7-Flash
    assert most_latent_readers(16, 320, 512, 576) == 2  # DeepSeek-V2-Lite
    assert most_latent_readers(128, 320, 512, 576) == 20  # DeepSeek-V3
    assert block_format(loaded("deepseek_v3").layers, torch.float32, "auto").readers == 1
    engine = make_engine(loaded("deepseek_v3"))
    engine.pool.readers = 3
    ran = run(engine, job())
    assert sum(judge(completion, "deepseek_v3") for completion in ran.completions.values()) == 0
    engine.begin()
    engine.add(job())
    stored = engine.scheduler.cache.stored
    own = {len(request.samples) for node in stored if stored[node].fp8 for request in job()
           if node.tokens.tolist() == request.prompt_token_ids[-node.length :]}  # fmt: skip
    assert own == {1, 3}
    engine.end()


@pytest.mark.slow
@pytest.mark.turn(5)
@pytest.mark.usefixtures("dynamo_alone")
def test_compiled_layers_show_their_latents() -> None:
    """In one graph, whose kinds of layers are told apart by the order of their calls."""
    model = load_model(make_tiny("deepseek_v3"))
    torch.compiler.reset()
    with model.changing():
        for layer in decoder_layers(model):
            layer.compile(dynamic=True, fullgraph=True)
    ran = run(make_engine(model), job(4))
    assert sum(judge(completion, "deepseek_v3") for completion in ran.completions.values()) == 0
    model.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", LATENT)
@pytest.mark.parametrize("readers", [1, 3])
def test_kernels_draw_the_model_s_own_tokens(name: str, readers: int) -> None:
    """Also of a prompt that is several chunks long."""
    model = load_model(make_tiny(name).to("cuda"))
    config = replace(engine_config(model, block_size=16, blocks=400), enforce_eager=True)
    engine = CheckedEngine(model, None, config)
    assert engine.runner.attention.fallback is None and engine.pool.blocks_per_full == 4
    engine.pool.readers = readers
    long = Request(99, forest()[0] * 3, replace(PARAMS, n=1), range(1))
    ran = run(engine, [*job(), long])
    for completion in ran.completions.values():
        judge(completion, name)
    engine.close()
    model.release()
