"""Which reductions the compiler is told to do over whole rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

# The compiler, which takes seconds to import, is imported where it is used.


def is_held(numbers: Any, hint: str = "INNER") -> bool:
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    from sharegen.engine.model.passes.choosing import WholeRows, whole_rows

    reduction = ReductionHint[hint]
    features = SimpleNamespace(reduction_numel=numbers, get_reduction_hint=lambda: reduction)
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())), whole_rows():
        assert isinstance(V.choices, WholeRows)
        return bool(V.choices.should_use_persistent_reduction(features, False))


def test_rows_of_hidden_states_are_held() -> None:
    from sympy import Integer

    assert is_held(Integer(512)) and is_held(Integer(4096))
    assert is_held(Integer(16_384)) and not is_held(Integer(16_385))


def test_other_reductions_are_left_to_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from sympy import Integer, Symbol

    assert not is_held(Integer(4096), "OUTER")
    assert not is_held(Symbol("s0", integer=True))
    monkeypatch.setattr("torch._inductor.config.triton.persistent_reductions", False)
    assert not is_held(Integer(4096))


def test_what_is_compiled_outside_is_not_concerned() -> None:
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    from sharegen.engine.model.passes.choosing import whole_rows

    with whole_rows():
        pass
    assert type(V.choices) is InductorChoices


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_norm_goes_over_its_rows_once() -> None:
    from torch._inductor.utils import run_and_get_code

    from sharegen.engine.model.passes.choosing import whole_rows

    norm = torch.nn.RMSNorm(4096, device="cuda")
    with whole_rows(), torch.inference_mode():
        compiled = torch.compile(norm, dynamic=True, fullgraph=True)
        _, [code] = run_and_get_code(compiled, torch.randn(7, 4096, device="cuda"))
    assert "triton_per" in code and "triton_red" not in code
