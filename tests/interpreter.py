"""Triton's interpreter, made to compute as tests of bits need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch


@contextmanager
def rows_by_themselves() -> Iterator[None]:
    """Inside, the interpreter's matrix products give a row the same bits in any place.

    It multiplies by numpy's BLAS, which on some CPUs adds a row's products up in another order
    elsewhere in a matrix, or in a matrix of more rows. What is added up in float64 and rounded to
    float32 does not show that. On a GPU there is no interpreter.
    """
    if torch.cuda.is_available():
        yield
        return
    from triton.runtime import interpreter

    builder, made = interpreter.InterpreterBuilder, interpreter.TensorHandle
    as_it_is = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *more: Any) -> Any:
        kinds = {a.data.dtype, b.data.dtype}
        if d.data.dtype != np.float32 or not kinds <= {np.dtype(np.float32), np.dtype(np.float16)}:
            return as_it_is(self, a, b, d, *more)
        product = np.matmul(a.data, b.data, dtype=np.float64).astype(np.float32)
        return made(product + d.data, d.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_dot", create_dot)
        yield
