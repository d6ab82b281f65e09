from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.load import load_model
from sharegen.errors import ModelError
from tests.engine.tiny_models import REFUSED, make_tiny, tiny_config


def layers(name: str) -> list[LayerSpec]:
    loaded = load_model(make_tiny(name))
    loaded.release()
    return loaded.layers


def test_layers_say_what_attention_is() -> None:
    plain = LayerSpec(num_heads=4, num_kv_heads=2, key_size=8, value_size=8, scaling=8**-0.5)
    assert layers("llama") == [plain, plain]


def test_unequal_key_and_value_sizes() -> None:
    first = layers("deepseek_v3")[0]
    assert (first.num_kv_heads, first.key_size, first.value_size) == (4, 12, 6)
    assert first.scaling == pytest.approx(12**-0.5)


def test_layers_may_differ() -> None:
    sliding, full = layers("gemma4")
    assert (sliding.key_size, sliding.window) == (8, 6)
    assert (full.key_size, full.window) == (16, None)


def test_window_softcap_and_sinks_come_from_the_call() -> None:
    assert [layer.window for layer in layers("mistral")] == [7, 7]
    assert [(layer.window, layer.softcap) for layer in layers("gemma2")] == [(6, 2.0), (None, 2.0)]
    assert [layer.has_sinks for layer in layers("gpt_oss")] == [True, True]


def test_a_window_that_the_mask_does_not_know_is_none() -> None:
    """olmoe passes a config's stray `sliding_window` on, and eager attention heeds the mask."""
    config = tiny_config("olmoe")
    config.sliding_window = 5
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert {layer.window for layer in load_model(model).layers} == {None}


def test_windows_and_chunks_that_only_the_mask_knows() -> None:
    assert [layer.window for layer in layers("qwen2_moe")] == [6, None]
    assert [layer.attention_chunk for layer in layers("llama4")] == [10, 10, 10, None]
    assert [layer.window for layer in layers("llama4")] == [None] * 4


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "config"])
@pytest.mark.parametrize("name", sorted(REFUSED))
@pytest.mark.turn(2)
def test_refusal_names_its_reason_in_one_line(name: str, weights: bool, tmp_path: Path) -> None:
    reason = REFUSED[name][2]
    if "encoder-decoder" in reason:
        tiny_config(name).save_pretrained(tmp_path)
    else:
        make_tiny(name).save_pretrained(tmp_path)
    with pytest.raises(ModelError) as error:
        load_model(tmp_path, device="cpu", weights=weights)
    assert str(error.value) == f"model {tmp_path} is not supported: {reason}"


def refused(model: Any) -> str:
    with pytest.raises(ModelError) as error:
        load_model(model)
    assert model.config._attn_implementation == "eager", "a refused model is left as it was"
    return str(error.value).removeprefix(f"model {type(model).__name__} is not supported: ")


def llama_as(kind: type[LlamaForCausalLM]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return kind._from_config(tiny_config("llama"), attn_implementation="eager").eval()


class ShiftsTokens(LlamaForCausalLM):
    """Every embedding carries some of the token before it."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        embeddings = self.model.embed_tokens(input_ids)
        embeddings[:, 1:] += embeddings[:, :-1].clone()
        return super().forward(inputs_embeds=embeddings, position_ids=position_ids, **kwargs)


class CallsTwice(LlamaForCausalLM):
    """Runs its layers again on their own output."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        hidden = self.model(input_ids=input_ids, position_ids=position_ids, **kwargs)[0]
        return super().forward(inputs_embeds=hidden, position_ids=position_ids, **kwargs)


class SkipsLayer(LlamaForCausalLM):
    """Leaves its last layer out."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        last = self.model.layers.pop(-1)
        try:
            return super().forward(input_ids, position_ids=position_ids, **kwargs)
        finally:
            self.model.layers.append(last)


class BringsMask(LlamaForCausalLM):
    """Hands a mask of its own to every layer."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        length = input_ids.shape[1]
        kwargs["attention_mask"] = torch.zeros(1, 1, length, length).triu(1) - 1.0
        return super().forward(input_ids, position_ids=position_ids, **kwargs)


class PassesMore(LlamaForCausalLM):
    """Passes to its attention what sharegen doesn't know."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        kwargs["alibi_slopes"] = torch.ones(4)
        return super().forward(input_ids, position_ids=position_ids, **kwargs)


class Breaks(LlamaForCausalLM):
    """Fails."""

    def forward(self, input_ids: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        raise ValueError("no weights for two tokens\nand more lines")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (ShiftsTokens, "it mixes tokens outside attention (a state or convolution)"),
        (CallsTwice, "it calls the attention of a layer more than once"),
        (SkipsLayer, "only 1 of its 2 layers call attention"),
        (BringsMask, "it builds its own attention mask"),
        (PassesMore, "it passes alibi_slopes to its attention"),
        (Breaks, "its forward fails on two tokens: no weights for two tokens"),
    ],
)
def test_refuses_what_it_cannot_vouch_for(kind: type[LlamaForCausalLM], reason: str) -> None:
    assert refused(llama_as(kind)) == reason
