from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Interpreted kernels are slow: float32 at every turn, float16 with the slow tests, and of a
    test's cases of float16 each third; `tests/conftest.py`, which comes after, sees to that."""
    if torch.cuda.is_available():
        return
    for item in items:
        params = getattr(item, "callspec", None)
        if params is not None and any(value is torch.float16 for value in params.params.values()):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("every") is None:
                item.add_marker(pytest.mark.turn(3))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Before Triton 3.7 the interpreter turns arrays of one number into numbers, which numpy's
    later versions refuse: what meets that is skipped."""
    try:
        return (yield)
    except Exception as error:
        if "only 0-dimensional arrays can be converted" in str(error) and _is_old():
            pytest.skip("this Triton's interpreter does not go with this numpy")
        raise


def _is_old() -> bool:
    return [int(number) for number in version("triton").split(".")[:2]] < [3, 7]


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Coverage measures no kernel, and would make the interpreter take more than twice as long."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)


@pytest.fixture(autouse=True, scope="module")
def patched_once() -> Iterator[None]:
    """The interpreter's functions stand in the language's place for all of a module's tests.

    Otherwise it looks for all of them at every call of a function inside a kernel, which takes
    more time than what the kernels compute.
    """
    if torch.cuda.is_available():
        yield
        return
    from triton import language
    from triton.runtime import interpreter

    everything = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    scope = interpreter._patch_lang(everything)
    with pytest.MonkeyPatch.context() as patch:
        nothing = type(scope)()
        patch.setattr(interpreter, "_patch_lang", lambda function: nothing)
        yield
    scope.restore()


@pytest.fixture(autouse=True, scope="module")
def rows_by_themselves() -> Iterator[None]:
    """The interpreter's matrix products give a row the same bits in any place.

    It multiplies by numpy's BLAS, which on some CPUs adds a row's products up in another order
    elsewhere in a matrix. What is added up in float64 and rounded to float32 does not show that.
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
