"""The oracle on a GPU: kernels, CUDA graphs, compiled layers, and ends that the device finds."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

from sharegen.engine.engine import Engine
from sharegen.engine.execute import kernel_attention
from sharegen.engine.model.load import load_model
from sharegen.kernels.cost import Decided
from tests.engine.jobs import (
    GREEDY,
    engine_config,
    first_difference_is_a_tie,
    forest,
    hope_for_the_best,
    requests_of,
    run,
    swap_always,
)
from tests.engine.test_exact import ARCHITECTURES
from tests.engine.tiny_models import TINY, make_tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROMPTS = [prompt[:48] for prompt in forest()]  # some models end at 64 tokens
ENDS = list(range(20, 40))  # of 128 tokens: some samples end early
SAMPLES = 3
ATTENTION_MODES = {
    "shared": Decided(every=0),
    "per sequence": Decided(every=1),
    "mixed": Decided(every=2),
}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        (name, mode)
        for name in sorted(TINY)
        for mode in ATTENTION_MODES
        if name in ARCHITECTURES or mode != "mixed"
    ],
)
def test_greedy_tokens_equal_generate(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every architecture in every attention mode; the first ones and hybrids compiled, too."""
    monkeypatch.setattr(kernel_attention, "load_costs", lambda _: ATTENTION_MODES[mode])
    model = make_tiny(name).to("cuda")
    model.generation_config.eos_token_id = ENDS
    loaded = load_model(model)
    is_compiled = mode == "shared" and (name in ARCHITECTURES or bool(loaded.mixers))
    config = engine_config(loaded, blocks=600, max_sequences=24, compile=is_compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what runs uncaptured must be right as well
        engine = Engine(loaded, None, config)
        params = replace(GREEDY, ignore_eos=False)
        ran = run(engine, requests_of(PROMPTS, params, SAMPLES))
    engine.close()
    ended = 0
    for key, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt], device="cuda")
        wanted = model.generate(ids, max_new_tokens=params.max_tokens, do_sample=False)
        expected = wanted[0, len(prompt) :].tolist()
        ended += len(expected) < params.max_tokens
        for sample in range(SAMPLES):
            tokens = ran.tokens[key, sample]
            if tokens != expected:
                assert first_difference_is_a_tie(model, prompt, tokens, expected), (key, sample)
    assert ended


@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize("host_blocks", [0, 9, 400])
def test_preempted_samples_go_on_as_they_were(name: str, host_blocks: int) -> None:
    """Swapped to host memory on a stream beside the steps, or computed again in one pass."""
    model = make_tiny(name).to("cuda")
    loaded = load_model(model)
    sizes = {"blocks": 48, "max_sequences": 24, "host_blocks": host_blocks}
    params = replace(GREEDY, temperature=1.0, max_tokens=40)
    requests = requests_of([prompt[:20] for prompt in PROMPTS], params, SAMPLES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of host memory for nine blocks
        whole = Engine(loaded, None, engine_config(loaded, blocks=600, max_sequences=24))
        expected = run(whole, requests)
        engine = Engine(loaded, None, engine_config(loaded, compile=False, **sizes))
        hope_for_the_best(engine)
        swap_always(engine)
        ran = run(engine, requests)
    stats, swapping = engine.stats, engine.scheduler.swapping
    assert stats.preemptions > 0
    assert (stats.swaps > 0) == (host_blocks > 0)
    assert (swapping.tokens_filled > 0) == (stats.swaps < stats.preemptions)  # no slot is free
    same = [ran.tokens[place] == tokens for place, tokens in expected.tokens.items()]
    assert sum(same) >= 0.9 * len(same)  # a draw that rounding moves to the next token
    engine.close()
    whole.close()


def test_a_model_that_cannot_be_captured_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine runs small jobs before the first one, and each would capture its graphs."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    loaded = load_model(make_tiny("llama").to("cuda"))
    config = engine_config(loaded, blocks=600, max_sequences=24, compile=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = Engine(loaded, None, config)
        run(engine, requests_of(PROMPTS, GREEDY, SAMPLES))
    engine.close()
    told = [str(one.message) for one in caught if "without CUDA graphs" in str(one.message)]
    assert len(told) == 1, told


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one() -> None:
    """Kernels, streams and graphs follow the model, and the caller's device stays his."""
    model = make_tiny("llama").to("cuda:1")
    loaded = load_model(model)
    config = engine_config(loaded, blocks=600, max_sequences=24)
    engine = Engine(loaded, None, config)
    ran = run(engine, requests_of(PROMPTS, GREEDY, SAMPLES))
    assert torch.cuda.current_device() == 0
    engine.close()
    first = load_model(make_tiny("llama").to("cuda:0"))
    there = run(Engine(first, None, config), requests_of(PROMPTS, GREEDY, SAMPLES))
    assert ran.tokens == there.tokens
