"""What a model that does not compile says, and how it is left."""

from __future__ import annotations

import pytest
from torch import nn

from sharegen.engine.model import compiling
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.tiny_models import make_tiny


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


def query_projection(loaded: LoadedModel) -> nn.Module:
    return loaded.model.get_submodule("model.layers.0.self_attn.q_proj")
