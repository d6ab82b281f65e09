"""The compiler learns nothing of the number of rows from operators that it cannot look into.

What it takes for a constant there it compiles anew for every other number, in the midst of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import sharegen.engine.model.fp4.products
import sharegen.engine.model.fp8.blocks
import sharegen.engine.model.interface
import sharegen.engine.model.passes.gating  # noqa: F401  # for their operators

OPS = torch.ops.sharegen
ROWS, SIZE, WIDTH, GROUPS = 77, 256, 384, 4  # of which no two are alike


def of(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


X, SCALES = of(ROWS, SIZE), of(ROWS, 2, dtype=torch.float32)
NUMBERS = of(ROWS, SIZE, dtype=torch.float8_e4m3fn)
BLOCKS = of(WIDTH, SIZE, dtype=torch.float8_e4m3fn), of(3, 2, dtype=torch.float32)
EXPERTS = of(GROUPS, *BLOCKS[0].shape, dtype=BLOCKS[0].dtype), of(GROUPS, 3, 2, dtype=torch.float32)
WORDS = of(GROUPS, WIDTH, 64, dtype=torch.int32), of(GROUPS, 2, WIDTH, dtype=torch.int32)
WHICH, ENDS = of(ROWS, dtype=torch.int64), of(GROUPS, dtype=torch.int32)

# Those of attention are among a layer's, and seen with it (`test_wanted_rows.py`).
OPERATORS: dict[str, tuple[Callable[..., object], Sequence[torch.Tensor]]] = {
    "mix": (OPS.mix, [X]),
    "mix to a width": (lambda x: OPS.mix(x, WIDTH), [X]),
    "scaled by groups": (lambda x: OPS.quantise_groups(x, False), [X]),
    "scaled by groups, by columns": (lambda x: OPS.quantise_groups(x, True), [X]),
    "gated": (lambda x, up: OPS.gated_groups(x, up, False), [X, X.clone()]),
    "gated, by columns": (lambda x, up: OPS.gated_groups(x, up, True), [X, X.clone()]),
    "blocks": (OPS.block_product, [NUMBERS, SCALES.t(), *BLOCKS]),
    "experts in blocks": (OPS.block_groups, [NUMBERS, SCALES, WHICH, *EXPERTS, ENDS]),
    "experts in MXFP4": (OPS.fp4_groups, [X, WHICH, *WORDS, ENDS]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_says_nothing_of_the_number_of_rows(name: str) -> None:
    operator, tensors = OPERATORS[name]
    traced = make_fx(operator, tracing_mode="symbolic")(*tensors)
    rows = next(iter(traced.graph.nodes)).meta["val"].shape[0]
    assert isinstance(rows, torch.SymInt) and rows.node.maybe_as_int() is None
