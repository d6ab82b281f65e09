from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from types import SimpleNamespace

import pytest
import torch

from tests.interpreter import rows_by_themselves


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
def whole_module() -> Iterator[None]:
    """A row's products have the same bits in any place, in all tests of a module."""
    with rows_by_themselves():
        yield
