from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharegen.engine.model.load import load_model
from sharegen.errors import RequestError
from tests.engine.jobs import GREEDY, make_engine, original, random_tokens, requests_of, run
from tests.engine.tiny_models import make_tiny, tiny_config


def rotary(model: Any) -> Any:
    return model.model.rotary_emb


def test_longrope_is_exact_to_its_original_length_and_refused_beyond() -> None:
    loaded = load_model(make_tiny("phi3-longrope"))
    assert loaded.context_length == 64
    loaded.check_length(64)
    with pytest.raises(RequestError) as error:
        loaded.check_length(65)
    assert str(error.value) == (
        "65 tokens are too many for this model: its longrope RoPE frequencies change beyond "
        "64 tokens"
    )


def test_two_scales_of_sines_hold_to_the_original_length() -> None:
    """phimoe scales them by the longest text of a batch, whatever kind its RoPE is of."""
    config = tiny_config("phimoe")
    config.rope_parameters = {
        "rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "short_mscale": 1.3,
        "long_mscale": 1.9, "original_max_position_embeddings": 64,
    }  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    prompt = random_tokens(300, random.Random(0))
    expected = model.generate(
        torch.tensor([prompt[:5]]), max_new_tokens=9, do_sample=False, eos_token_id=None
    )[0, 5:].tolist()
    engine = make_engine(load_model(model))
    assert engine.model.context_length == 64
    params = replace(GREEDY, max_tokens=9, ignore_eos=True)
    both = requests_of([prompt[:5], prompt[:55]], params)
    assert run(engine, both).completions[0, 0].token_ids == expected
    with pytest.raises(RequestError, match="its linear RoPE frequencies change beyond 64 tokens"):
        engine.check(requests_of([prompt[:60]], params)[0])


def test_a_request_that_may_outgrow_its_frequencies_is_refused_and_a_shorter_one_exact() -> None:
    loaded = load_model(make_tiny("phi3-longrope"))
    engine = make_engine(loaded)
    params = replace(GREEDY, max_tokens=20)
    prompt = random_tokens(300, random.Random(0))
    for length, planned in ((45, 65), (300, 256)):  # the config allows 256
        with pytest.raises(RequestError) as error:
            list(engine.generate(requests_of([prompt[:length]], params)))
        assert str(error.value).startswith(
            f"{planned} tokens are too many for this model: its longrope"
        )
    [completion] = run(engine, requests_of([prompt[:44]], params)).completions.values()
    loaded.release()
    model = original("phi3-longrope")
    model.generation_config.eos_token_id = None
    whole = model.generate(torch.tensor([prompt[:44]]), max_new_tokens=20, do_sample=False)
    assert completion.token_ids == whole[0, 44:].tolist()


def test_dynamic_frequencies_hold_to_the_length_of_the_config() -> None:
    loaded = load_model(make_tiny("llama-dynamic-rope"))
    assert loaded.context_length == 256
    with pytest.raises(RequestError, match="dynamic RoPE frequencies change beyond 256 tokens"):
        loaded.check_length(257)


def test_scaling_that_does_not_move_is_not_limited() -> None:
    for name in ("llama-llama3-rope", "qwen2-yarn-rope"):
        assert load_model(make_tiny(name)).context_length == 256


@torch.no_grad()
def test_frequencies_of_an_earlier_long_text_are_put_back() -> None:
    model = make_tiny("phi3-longrope")
    short = torch.arange(5, 15)[None]
    wanted = model(input_ids=short, use_cache=False).logits
    before = rotary(model).inv_freq.clone()
    model(input_ids=torch.arange(70)[None], use_cache=False)  # takes the long factors
    assert not torch.equal(rotary(model).inv_freq, before)
    loaded = load_model(model)
    model(input_ids=torch.arange(70)[None], use_cache=False)  # between two calls of ours
    with loaded.ours():
        assert torch.equal(rotary(model).inv_freq, before)
        assert rotary(model).rope_type == "default"
    loaded.release()
    assert rotary(model).rope_type == "longrope"
    assert torch.equal(model(input_ids=short, use_cache=False).logits, wanted)


def test_limit_is_known_from_the_config_alone(tmp_path: Path) -> None:
    make_tiny("phi3-longrope").save_pretrained(tmp_path)
    assert load_model(tmp_path, weights=False).context_length == 64
