"""What differs between forwards of few and of many rows is found, and only that."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bits
from benchmarks.bits import Comparison, bench_bits, compare_forwards
from sharegen.bench.shapes import random_model
from sharegen.engine.model.load import load_model
from sharegen.errors import UsageError


def test_a_model_on_a_cpu_in_float32_gives_a_row_the_same_bits() -> None:
    found = bench_bits("tiny", rows=(32, 64), deterministic=False, compile_model=False,
                       device="cpu", dtype="float32")  # fmt: skip
    assert found["compared"] > 100
    assert found["differing"] == {} and found["first"] is None


def test_every_place_where_bits_begin_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(random_model("tiny", torch.device("cpu"), torch.float32))
    norm = model.model.model.layers[1].input_layernorm
    forward = norm.forward
    monkeypatch.setattr(norm, "forward", lambda x: forward(x) * (1.0 + 1e-3 * (x.shape[1] > 40)))
    found = compare_forwards(model, 32, 64, compiled=False)
    model.release()
    [only] = found.differences
    assert only.operation == "aten.mul.Tensor in model.layers.1.input_layernorm"
    assert only.rows == 32 and only.first != only.second


def test_the_second_run_goes_on_with_the_bits_of_the_first() -> None:
    seen = Comparison(2, 3)
    seen.see("one", torch.tensor([[1.0], [2.0]]))
    seen.see("other", torch.zeros(2, dtype=torch.int64))
    seen.again()
    result = torch.tensor([[1.0], [2.5], [7.0]])
    seen.see("one", result)
    assert result.tolist() == [[1.0], [2.0], [7.0]]
    assert [(one.operation, one.rows) for one in seen.differences] == [("one", 1)]
    with pytest.raises(UsageError, match="the forwards part: other of 2 rows, another of 3"):
        seen.see("another", torch.zeros(3))


def test_zeros_of_both_signs_are_other_bits() -> None:
    seen = Comparison(1, 2)
    seen.see("zero", torch.tensor([0.0]))
    seen.again()
    seen.see("zero", torch.tensor([-0.0, 0.0]))
    assert seen.differences and seen.compared == 1


@pytest.mark.parametrize("rows", [(3,), (5, 5), (6, 5), (1, 2, 3)])
def test_two_numbers_of_rows_the_lower_first(rows: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="give two numbers, the lower first"):
        bench_bits("tiny", rows=rows, deterministic=True, compile_model=False, device="cpu",
                   dtype="float32")  # fmt: skip


def test_kinds_of_operations_are_counted_over_all_layers() -> None:
    assert bits._kind("aten.mm.default in layers.11.mlp") == "aten.mm.default in layers.*.mlp"
