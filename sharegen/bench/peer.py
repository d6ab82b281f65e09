"""FlashInfer as a peer: timed where it is here, its kernels compile, and its results are right."""

from __future__ import annotations

import sys

from sharegen.bench.layer import Layer, Step

_WRONG = 0.1
"""A difference from float32 that no rounding makes: values are normally distributed."""


class FlashInfer:
    """The peer, where it is installed and its kernels compile: at first that takes it minutes.

    Where it fails before it ever ran it is not asked again; later on, a case is left out.
    """

    def __init__(self, is_there: bool) -> None:
        self._is_there = is_there
        self._has_run = False

    def step(self, layer: Layer) -> Step | None:
        """A step that has run once, its result compared with float32's; or None, and a line."""
        if not self._is_there:
            return None
        try:
            step = layer.flashinfer()
            error = None if step is None else layer.flashinfer_error(step)
        except Exception as failure:  # a package that compiles for itself fails in ways of its own
            reason = (str(failure).strip() or type(failure).__name__).splitlines()[0]
            what = f"{layer.case}, FlashInfer" if self._has_run else "FlashInfer's column"
            _leave_out(what, reason)
            self._is_there = self._has_run
            return None
        if error is None:
            return None
        self._has_run = True
        if not error < _WRONG:
            _leave_out(f"{layer.case}, FlashInfer", f"its results are off by {error:.2g}")
            return None
        return step


def _leave_out(what: str, reason: str) -> None:
    print(f"{what} is left out: {reason:.200}", file=sys.stderr, flush=True)
