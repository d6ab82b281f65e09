from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import sharegen.engine.model.load as engine_model
from sharegen.engine.model import interface
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.load import load_model
from sharegen.engine.model.self_check import DenseContext, self_check
from sharegen.errors import ModelError, UsageError
from tests.engine.tiny_models import make_tiny, tiny_config


class CountsRows(LlamaForCausalLM):
    """Numbers the tokens of its input by itself: right for one prompt, wrong for a packed batch."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        rows = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        return super().forward(input_ids, position_ids=rows, **kwargs)


class Unchanged(LlamaForCausalLM):
    """A class that the tests of the architectures don't know."""


def build(kind: type[LlamaForCausalLM]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return kind._from_config(tiny_config("llama"), attn_implementation="eager").eval()


def test_unknown_class_passes_when_its_logits_agree() -> None:
    loaded = load_model(build(Unchanged))
    with loaded.ours():
        assert loaded.model.config._attn_implementation == "sharegen"
    loaded.release()


def test_unknown_class_is_refused_when_its_logits_differ() -> None:
    model = build(CountsRows)
    with pytest.raises(ModelError, match=r"^model CountsRows is not supported: its logits differ"):
        load_model(model)
    assert model.config._attn_implementation == "eager"


def test_a_wrong_layer_is_found() -> None:
    """A window or scale that the probe had read wrongly would not get through."""
    loaded = load_model(make_tiny("mistral"))
    self_check(loaded, "mistral")
    right = loaded.layers[0]
    for wrong in ({"window": 6}, {"window": None}, {"scaling": 0.3}, {"softcap": 1.0}):
        loaded.layers[0] = LayerSpec(**(vars(right) | wrong))
        with pytest.raises(ModelError, match="its logits differ"):
            self_check(loaded, "mistral")


def test_architectures_outside_the_tested_list_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(engine_model, "self_check", lambda loaded, name: checked.append(name))
    load_model(make_tiny("llama"))
    assert checked == []
    monkeypatch.setattr(engine_model, "TESTED", engine_model.TESTED - {"llama"})
    load_model(make_tiny("llama"))
    assert checked == ["LlamaForCausalLM"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision_passes(dtype: torch.dtype) -> None:
    for name in ("llama", "gemma2", "gpt_oss"):
        loaded = load_model(make_tiny(name).to(dtype))
        self_check(loaded, name)


def test_dense_attention_of_one_row_is_its_value() -> None:
    layer = LayerSpec(num_heads=4, num_kv_heads=2, key_size=3, value_size=5, scaling=1.0)
    q, k, v = torch.randn(1, 4, 3), torch.randn(1, 2, 3), torch.randn(1, 2, 5)
    zero = torch.zeros(1, dtype=torch.long)
    context = DenseContext([layer], zero, zero)
    assert torch.allclose(context.attend(0, q, k, v), v.repeat_interleave(2, dim=1))
    sinks = torch.full((4,), 50.0)  # takes all of the weight
    assert context.attend(0, q, k, v, sinks=sinks).abs().max() < 1e-6


def test_a_model_called_outside_a_context_is_in_use() -> None:
    loaded = load_model(make_tiny("llama"))
    ids = torch.tensor([5, 6])
    with pytest.raises(UsageError, match="in use"):
        loaded.forward(ids, ids, ids[:1])
    with interface.active(DenseContext(loaded.layers, torch.zeros(2), torch.arange(2))):
        assert loaded.forward(ids, torch.arange(2), torch.tensor([1])).shape == (1, 128)
    with pytest.raises(UsageError, match="in use"):
        interface.current()
