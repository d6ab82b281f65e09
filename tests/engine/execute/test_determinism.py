"""What the deterministic mode refuses."""

from __future__ import annotations

import importlib.util
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sharegen.engine.execute.attention import attention_for
from sharegen.engine.execute.determinism import check_any_tree, check_deterministic
from sharegen.engine.model.states import first_forms
from sharegen.errors import UsageError


def model(device: str = "cuda", **fields: Any) -> Any:
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**fields))
    default = {"dtype": torch.bfloat16, "mixers": [], "config": config}
    return SimpleNamespace(device=torch.device(device), ranks=None, **(default | fields))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says which capability a card that is not there has."""

    def has(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, minor))

    has(9, 0)
    return has


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_on_a_cpu(dtype: torch.dtype) -> None:
    check_deterministic(model("cpu", dtype=torch.float32))
    with pytest.raises(UsageError, match="float16"):
        check_deterministic(model("cpu", dtype=dtype))


def test_a_card_without_the_kernels(card: Any) -> None:
    check_deterministic(model())
    card(7, 5)
    with pytest.raises(UsageError, match=r"sm_75.*sm_80 or later"):
        check_deterministic(model())


def test_other_packages_kernels_of_states_are_told_of(
    card: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_states = model(mixers=[object()])
    monkeypatch.setattr(first_forms, "find_spec", lambda name: None)
    check_deterministic(has_states)
    monkeypatch.setattr(first_forms, "find_spec", lambda name: name == "fla" or None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_deterministic(has_states)  # they gave the same bits in any batch
    monkeypatch.setattr(first_forms, "find_spec", lambda name: True)
    with pytest.warns(UserWarning, match="kernels of mamba_ssm and causal_conv1d compute"):
        check_deterministic(has_states)


def test_a_gpu_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cache: Any = SimpleNamespace(device=torch.device("cuda"))
    with pytest.raises(UsageError, match=r"plain torch .* \(Triton is not installed\)"):
        attention_for([object()], cache, 8, 8, deterministic=True)  # type: ignore[list-item]


def test_float16_and_experts_need_no_word(card: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_deterministic(model(num_experts=8))
        check_deterministic(model(dtype=torch.float16))


def test_a_card_that_has_not_shown_bits_of_any_tree(card: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_any_tree(model(), deterministic=True)
    card(8, 0)
    with pytest.warns(UserWarning, match="no card of this kind .sm_80."):
        check_any_tree(model(), deterministic=True)
