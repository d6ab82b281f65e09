"""A kernel that times its forms takes the first that runs, until it is let go."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from sharegen.engine.model.states.first_forms import keep_first_forms


def _too_large(arguments: dict[str, Any]) -> None:
    raise OutOfResources(3, 2, "shared memory")


FORMS = [
    triton.Config({"FORM": 1}, pre_hook=_too_large),
    triton.Config({"FORM": 2}),
    triton.Config({"FORM": 3}),
]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    @triton.autotune(FORMS, key=["length"])
    @triton.jit
    def form(out_ptr, length, FORM: tl.constexpr):  # type: ignore[no-untyped-def]
        tl.store(out_ptr, FORM)

    package = ModuleType("fla.ops")
    package.form = form  # type: ignore[attr-defined]
    package.no_kernel = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fla.ops", package)
    return form


def chosen(kernel: Any, length: int) -> int:
    out = torch.zeros(1, dtype=torch.int32)
    kernel[1,](out, length)
    return int(out)


def test_the_first_form_that_runs_is_kept(kernel: Any) -> None:
    kernel.cache["an earlier length"] = FORMS[2]
    let_go = keep_first_forms()
    assert not kernel.cache
    assert [chosen(kernel, length) for length in (8, 9, 8)] == [2, 2, 2]
    let_go()
    assert not kernel.cache and "do_bench" not in vars(kernel)


def test_what_is_of_no_such_package_is_left_alone(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", sys.modules["fla.ops"])
    monkeypatch.delitem(sys.modules, "fla.ops")
    keep_first_forms()
    assert "do_bench" not in vars(kernel)
