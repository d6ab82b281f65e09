"""What a model that does not compile says, and how it is left."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.model import compiling
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.request import Request, SamplingParams
from tests.engine.tiny_models import make_tiny, tiny_config


def test_a_model_that_does_not_compile_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nand a page about it")

    monkeypatch.setattr(LoadedModel, "trial_forward", fail)
    loaded = load_model(make_tiny("llama"))
    with pytest.warns(UserWarning, match="^the model runs uncompiled: no compiler here$"):
        compiling.optimise(loaded)
    assert type(query_projection(loaded)) is nn.Linear
    assert all(module._compiled_call_impl is None for module in loaded.model.modules())


def test_a_model_without_layers_to_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with code of its own may be."""
    monkeypatch.setattr(compiling, "GradientCheckpointingLayer", type(None))
    loaded = load_model(make_tiny("llama"))
    with pytest.warns(UserWarning, match="the model runs uncompiled: no layer of it"):
        compiling.optimise(loaded)
    assert type(query_projection(loaded)) is not nn.Linear  # fused all the same
    loaded.release()
    assert type(query_projection(loaded)) is nn.Linear


def test_every_layer_may_be_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds than Dynamo compiles of one function, and as many again in the next model."""
    compile = GradientCheckpointingLayer.compile
    monkeypatch.setattr(
        GradientCheckpointingLayer,
        "compile",
        lambda layer, **how: compile(layer, backend="eager", **how),
    )
    monkeypatch.setattr(compiling, "_PER_LAYER", 2)
    first = [nn.ReLU, nn.GELU, nn.SiLU]
    second = [nn.Mish, nn.SELU, nn.Tanh]
    torch.compiler.reset()
    models = []
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        for kinds in (first, second):
            config = tiny_config("llama")
            config.num_hidden_layers = len(kinds)
            module = AutoModelForCausalLM.from_config(config)
            for layer, kind in zip(module.model.layers, kinds, strict=True):
                layer.mlp.act_fn = kind()
            models.append(load_model(module))
            compiling.optimise(models[-1])
            assert module.model.layers[-1]._compiled_call_impl is not None
    for loaded in models:
        loaded.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_prefill_of_one_token_compiles_nothing() -> None:
    """The rest of a prompt that is one longer than a prefill batch."""
    loaded = load_model(make_tiny("mistral").to("cuda"))
    memory = 400 * 16 * loaded.kv_bytes_per_token
    config = EngineConfig(max_sequences=16, kv_cache_memory=memory, prefill_tokens=32)
    engine = Engine(loaded, None, config)
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    list(engine.generate([Request(0, range(3, 36), SamplingParams(max_tokens=3), range(2))]))
    assert counters["stats"]["unique_graphs"] == before
    engine.close()


def query_projection(loaded: LoadedModel) -> nn.Module:
    return loaded.model.get_submodule("model.layers.0.self_attn.q_proj")
