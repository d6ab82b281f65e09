"""What is ours on a module that somebody else trains, and that nothing of it stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sharegen.engine.model.compile import compiling
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import on
from tests.engine.tiny_models import make_tiny

IDS = torch.arange(5, 25)[None]


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_fused_and_compiled_layers_are_ours_alone(name: str) -> None:
    model = make_tiny(name).train()
    before = gradients(model)
    places = {key: type(part) for key, part in model.named_modules()}
    keys = list(model.state_dict())
    loaded = load_model(model)
    with loaded.changing():
        done = compiling.optimise(loaded)
    assert len(done.fused) >= 2 and not done.left
    expected = loaded.trial_forward(9, 9)
    for _ in range(2):
        assert all(map(torch.equal, gradients(model), before))
        assert {key: type(part) for key, part in model.named_modules()} == places
        assert list(model.state_dict()) == keys
        assert torch.equal(loaded.trial_forward(9, 9), expected)
    with loaded.ours():
        assert {key: type(part) for key, part in model.named_modules()} != places
        assert not model.training
    with torch.no_grad():  # as an optimiser's step does
        for weight in model.parameters():
            weight.add_(0.1)
    changed = loaded.trial_forward(9, 9)
    loaded.release()
    assert all(part._compiled_call_impl is None for part in model.modules())
    again = load_model(model)
    torch.testing.assert_close(changed, again.trial_forward(9, 9))
    assert not torch.equal(changed, expected)


def test_what_others_put_around_a_forward_is_theirs_alone() -> None:
    """accelerate's autocast, a compiler's code, and what is put there later."""
    model = make_tiny("llama")
    calls: list[str] = []

    def around(forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls.append("around")
            return forward(*args, **kwargs)

        return run

    model._original_forward = model.forward  # as accelerate keeps it
    model.forward = around(model.forward)
    model._compiled_call_impl = around(model._call_impl)
    loaded = load_model(model)
    expected = loaded.trial_forward(9, 9)
    assert not calls
    model(input_ids=IDS)
    assert calls == ["around", "around"]
    with torch.autocast("cpu"), on(loaded.device):
        assert torch.equal(loaded.trial_forward(9, 9), expected)
    loaded.release()
    other = make_tiny("llama")
    loaded = load_model(other)
    other.forward = around(other.forward)
    calls.clear()
    assert torch.equal(loaded.trial_forward(9, 9), expected) and not calls


def test_a_preparation_that_fails_leaves_nothing() -> None:
    model = make_tiny("llama")
    loaded = load_model(model)
    with pytest.raises(ValueError, match="no"), loaded.changing():
        model.config.use_cache = False
        raise ValueError("no")
    assert model.config.use_cache is True
    loaded.release()
    load_model(model).release()
