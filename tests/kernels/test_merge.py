"""Merging partials against the softmax over everything at once."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.fp8.products import LEAST
from sharegen.kernels.fp8_rows import FP8Rows
from sharegen.kernels.merge import merge_into_rows, merge_partials
from tests.kernels.test_fp8_rows import assert_rows
from tests.kernels.trees import DEVICE, assert_close, assert_guard, each_dtype, guarded

HEADS, SIZE = 3, 40
COUNTS = [0, 1, 5, 2]  # of each row's shared ones


def expected(
    outs: list[torch.Tensor], lses: list[torch.Tensor], sinks: torch.Tensor | None
) -> torch.Tensor:
    """[HEADS, SIZE] in float64 of partials out [HEADS, SIZE], lse [HEADS]."""
    if sinks is not None:
        outs, lses = [*outs, torch.zeros(HEADS, SIZE, device=DEVICE)], [*lses, sinks]
    weights = torch.stack(lses).double()
    weights = torch.softmax(weights, dim=0).nan_to_num(0.0)  # nothing at all becomes zeros
    return (weights[..., None] * torch.stack(outs).double().nan_to_num(0.0)).sum(0)


@pytest.mark.parametrize("num_own", [1, 4])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_whole_rows_become_e4m3(num_own: int, has_sinks: bool) -> None:
    parts = partials(num_own)
    sinks = torch.tensor([0.5, -1.0, 30.0], device=DEVICE) if has_sinks else None
    out = torch.empty(len(COUNTS), HEADS, SIZE, device=DEVICE)
    merge_partials(*parts, out, sinks=sinks)
    rows = FP8Rows.empty(len(COUNTS), HEADS * SIZE, DEVICE, LEAST)
    merge_into_rows(*parts, rows, sinks=sinks)
    assert_rows(rows, out.flatten(1))


@each_dtype
@pytest.mark.parametrize("num_own", [0, 1, 4])
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_any_number_of_partials(num_own: int, has_sinks: bool, dtype: torch.dtype) -> None:
    shared_out, shared_lse, start, own_out, own_lse = partials(num_own)
    sinks = torch.tensor([0.5, -1.0, 30.0], device=DEVICE) if has_sinks else None
    out, whole = guarded((len(COUNTS), HEADS, SIZE), dtype)
    merge_partials(shared_out, shared_lse, start, own_out, own_lse, out, sinks=sinks)
    assert_guard(whole)
    for row in range(len(COUNTS)):
        mine = range(int(start[row]), int(start[row + 1]))
        outs = [shared_out[i] for i in mine] + list(own_out[row])
        lses = [shared_lse[i] for i in mine] + list(own_lse[row])
        if outs or has_sinks:
            assert_close(out[row], expected(outs, lses, sinks))
        else:
            assert (out[row] == 0).all()


def partials(num_own: int) -> tuple[torch.Tensor, ...]:
    """Random ones, some of them empty, as `merge_partials` takes them."""
    generator = torch.Generator().manual_seed(num_own)
    start = torch.tensor([0, *torch.tensor(COUNTS).cumsum(0).tolist()], dtype=torch.int32)
    shared_out = torch.randn(sum(COUNTS), HEADS, SIZE, generator=generator)
    shared_lse = torch.randn(sum(COUNTS), HEADS, generator=generator) * 20
    own_out = torch.randn(len(COUNTS), num_own, HEADS, SIZE, generator=generator)
    own_lse = torch.randn(len(COUNTS), num_own, HEADS, generator=generator) * 20
    for out, lse in ((shared_out[:4], shared_lse[:4]), (own_out[2:], own_lse[2:])):
        lse[..., 1] = float("-inf")  # empty, and its output never written
        out[..., 1, :] = float("nan")
    return tuple(t.to(DEVICE) for t in (shared_out, shared_lse, start, own_out, own_lse))
