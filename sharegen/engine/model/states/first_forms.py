"""Kernels of other packages that time several forms and keep the fastest: here they keep the first.

The forms add up in other orders, and the fastest is another one in another process, or for another
length. So where bits may not depend on that, each takes the first of its forms that runs.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

_PACKAGES = ("fla", "mamba_ssm", "causal_conv1d")  # those that models look for


def installed_kernels() -> list[str]:
    """The packages that are there, whose kernels a model takes then."""
    return [name for name in _PACKAGES if find_spec(name) is not None]


def keep_first_forms() -> Callable[[], None]:
    """Hold the kernels that are there now; returns what lets them choose as before."""
    tuners = [] if find_spec("triton") is None else list(_tuners())
    before = [tuner.cache_results for tuner in tuners]
    for tuner in tuners:
        tuner.cache.clear()
        tuner.cache_results = False  # on disk are the times of earlier processes
        tuner.do_bench = _order()

    def let_go() -> None:
        for tuner, cached in zip(tuners, before, strict=True):
            tuner.cache.clear()
            tuner.cache_results = cached
            del tuner.do_bench

    return let_go


def _order() -> Callable[..., list[float]]:
    """Says how long a form took: longer than any before it, however long it did."""
    turn = itertools.count(1.0)

    def run(kernel: Callable[[], object], **_: Any) -> list[float]:
        kernel()
        return [next(turn)] * 3

    return run


def _tuners() -> Iterator[Any]:
    """The packages' kernels with several forms, each once."""
    from triton.runtime.autotuner import Autotuner

    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES:
            for kernel in list(vars(module).values()):
                while kernel is not None and id(kernel) not in seen:
                    seen.add(id(kernel))
                    if isinstance(kernel, Autotuner):
                        yield kernel
                    kernel = getattr(kernel, "fn", None)
