"""What a CUDA graph cannot hold, found without a GPU: a step that the host takes part in.

A model on torch's meta device stands for one on a GPU: its tensors are not the host's, and have no
numbers that the host could look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM

from sharegen.engine.model.load import _prepare
from sharegen.errors import ModelError
from tests.engine.tiny_models import TINY, tiny_config

ON_THE_HOST = {"dbrx", "jetmoe", "longcat_flash"}
"""They choose their experts there, which a warning says when a step is to be captured."""


MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)


class _Made(TorchFunctionMode):
    """Notes tensors of the device that are made of Python's numbers."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in MADE_OF_NUMBERS and out.is_meta:
            self.found.append(func.__name__)
        return out


class _Copied(TorchDispatchMode):
    """Notes operations that make a tensor of the device from one of the host.

    A number without axes is none: a kernel is handed it.
    """

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = any(isinstance(each, torch.Tensor) and each.is_meta for each in tree_leaves(out))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        is_copy = func.name().startswith(("aten::to", "aten::_to_copy", "aten::copy_"))
        if made and any(each.device.type == "cpu" and (each.ndim or is_copy) for each in given):
            self.found.append(func.name())
        return out


@contextmanager
def copies() -> Iterator[list[str]]:
    found: list[str] = []
    with _Made(found), _Copied(found):
        yield found


def step_of(name: str, **changes: Any) -> list[str]:
    """The copies in a step of four rows, of bfloat16: torch multiplies its experts on the GPU."""
    config = tiny_config(name)
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.set_experts_implementation("batched_mm")  # the probe's experts choose no numbers
    loaded = _prepare(model, name, name)
    if any(hasattr(type(module), "_apply_gate") for module in model.modules()):
        model.set_experts_implementation("grouped_mm")
    # Padding is looked for outside of captures alone.
    capturing = mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True)
    with capturing, torch.inference_mode(), copies() as found:
        loaded.trial_forward(4, 4)
    return found


@pytest.mark.turn(5)
@pytest.mark.parametrize("name", TINY)
def test_no_step_copies_from_the_host(name: str) -> None:
    if name not in ON_THE_HOST:
        assert step_of(name) == []
        return
    with pytest.raises(ModelError, match="its forward needs numbers"):
        step_of(name)


@pytest.mark.parametrize("kind", ["linear", "longrope"])
def test_scaled_frequencies_of_phimoe_are_made_once(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4, "short_mscale": 1.3,
            "long_mscale": 1.9, "original_max_position_embeddings": 64,
            "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}  # fmt: skip
    assert step_of("phimoe", rope_parameters=rope) == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(2.0, device="meta"),
        lambda: torch.empty(3, device="meta").new_tensor([1.0]),
        lambda: torch.ones(3).to("meta"),
        lambda: torch.empty(3, device="meta").copy_(torch.ones(3)),
    ],
)
def test_what_copies_is_found(make: Callable[[], torch.Tensor]) -> None:
    with copies() as found:
        make()
    assert len(found) == 1


def test_a_number_that_a_kernel_is_handed_is_no_copy() -> None:
    with copies() as found:
        torch.empty(3, device="meta") * torch.tensor(2.0)
    assert found == []
