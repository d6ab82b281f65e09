"""One layer at a time on the device, here torch's meta, which has sizes and no numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.model.layerwise import layer_by_layer


class Layer(GradientCheckpointingLayer):
    def __init__(self, look: Any) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.look = look

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.look()
        return self.inner(x) + self.shift


@pytest.mark.parametrize("fails", [False, True])
def test_a_layer_comes_for_its_forward_and_goes(fails: bool) -> None:
    there: list[list[bool]] = []

    def look() -> None:
        there.append([layer.inner.weight.is_meta and layer.shift.is_meta for layer in layers])
        if fails:
            raise RuntimeError("in the midst of a layer")

    layers: list[Any] = [Layer(look), Layer(look)]
    model: Any = nn.Sequential(nn.Linear(4, 4), *layers)
    before = dict(model.state_dict(keep_vars=True))
    x = torch.ones(2, 4, device="meta")
    with layer_by_layer(model, x.device):
        assert model[0].weight.is_meta and not there
        if fails:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="in the midst of a layer"):
                    model(x)
        else:
            model(x)
    assert there == ([[True, False]] * 2 if fails else [[True, False], [False, True]])
    after = dict(model.state_dict(keep_vars=True))
    assert all(after[name] is before[name] for name in before)  # the very tensors
    fails = False
    assert not model(torch.ones(2, 4)).is_meta
