from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.model import load_model
from sharegen.errors import ModelError
from tests.engine.tiny_models import make_tiny


def rotary(model: Any) -> Any:
    return model.model.rotary_emb


def test_longrope_is_exact_to_its_original_length_and_refused_beyond() -> None:
    loaded = load_model(make_tiny("phi3-longrope"))
    assert loaded.context_length == 64
    loaded.check_length(64)
    with pytest.raises(ModelError) as error:
        loaded.check_length(65)
    assert str(error.value) == (
        "65 tokens are too many for this model: its longrope RoPE frequencies change beyond "
        "64 tokens"
    )


def test_dynamic_frequencies_hold_to_the_length_of_the_config() -> None:
    loaded = load_model(make_tiny("llama-dynamic-rope"))
    assert loaded.context_length == 256
    with pytest.raises(ModelError, match="dynamic RoPE frequencies change beyond 256 tokens"):
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
    assert torch.equal(rotary(model).inv_freq, before)
    assert rotary(model).rope_type == "default"
    loaded.release()
    assert rotary(model).rope_type == "longrope"
    assert torch.equal(model(input_ids=short, use_cache=False).logits, wanted)


def test_limit_is_known_from_the_config_alone(tmp_path: Path) -> None:
    make_tiny("phi3-longrope").save_pretrained(tmp_path)
    assert load_model(tmp_path, weights=False).context_length == 64
