"""Layers that are compiled together."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.model.compile import compiling
from sharegen.engine.model.compile.stacking import Stack, stacks
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.tiny_models import TINY, make_tiny, tiny_config


def deep(layers: int, name: str = "llama") -> LoadedModel:
    torch.manual_seed(0)
    config = tiny_config(name)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * layers)[:layers]
    return load_model(AutoModelForCausalLM.from_config(config).eval())


def layers_of(model: LoadedModel) -> list[nn.Module]:
    return [m for m in model.model.modules() if isinstance(m, GradientCheckpointingLayer)]


def sizes(model: LoadedModel) -> list[int]:
    found = [len(stack.layers) for stack in stacks(model, layers_of(model))]
    assert all(layer._compiled_call_impl is None for layer in layers_of(model))
    return found


def test_stacks_are_of_one_size() -> None:
    assert sizes(deep(8)) == [4, 4]
    assert sizes(deep(6)) == [3, 3]
    assert sizes(deep(10)) == [2] * 5
    assert sizes(deep(5)) == []


@pytest.mark.parametrize("name", ["gemma3", "gemma3n", "qwen3_next", "mamba2"])
def test_layers_that_are_given_different_things_stay_by_themselves(name: str) -> None:
    """RoPE of two kinds, inputs of each layer, and mixers."""
    if name not in TINY:
        pytest.skip("this transformers does not have it")
    assert sizes(load_model(make_tiny(name))) == []


def test_something_between_two_layers_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = deep(4)
    layer = layers_of(model)[1]
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *of, **how: (forward(*of, **how),) * 2)
    with pytest.raises(Exception, match="tuple"):  # as the model would, too
        sizes(model)


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.turn(2)
def test_a_stack_computes_what_its_layers_do(name: str) -> None:
    model = deep(8, name)
    expected = {rows: model.trial_forward(rows, rows) for rows in (2, 3, 67)}
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    compiling.optimise(model)
    for rows, logits in expected.items():
        torch.testing.assert_close(model.trial_forward(rows, rows), logits)
    graphs = counters["stats"]["unique_graphs"] - before
    assert graphs == 3  # of the stacks, of the last one for some rows, and of the last norm
    assert all(layer._compiled_call_impl is not None for layer in layers_of(model))
    model.release()
    assert all(module._compiled_call_impl is None for module in model.model.modules())


@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.slow
def test_layers_are_compiled_one_by_one_where_a_stack_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = deep(4)

    def forward(stack: Stack, hidden: torch.Tensor, *args: object, **kwargs: object) -> None:
        torch._dynamo.graph_break("no compiler here")

    monkeypatch.setattr(Stack, "forward", forward)
    expected = model.trial_forward(5, 5)
    compiling.optimise(model)
    assert all(layer._compiled_call_impl is not None for layer in layers_of(model))
    torch.testing.assert_close(model.trial_forward(5, 5), expected)
    model.release()
