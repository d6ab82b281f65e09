"""The one place that chooses how the attention of a step is computed.

Models call `sharegen_attention` (model.py), which hands over to the context of the current step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class AttentionContext(Protocol):
    """What one forward's attention needs to know beyond the tensors that the model passes."""

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q: [T, Hq, Dk], k: [T, Hkv, Dk], v: [T, Hkv, Dv] -> [T, Hq, Dv]; sinks: [Hq]."""
        ...


_current: AttentionContext | None = None


def current() -> AttentionContext:
    """The context of the forward that is running."""
    assert _current is not None, "a model was called outside active()"
    return _current


@contextmanager
def active(context: AttentionContext) -> Iterator[None]:
    """Make `context` the current one for the forwards inside."""
    global _current
    previous, _current = _current, context
    try:
        yield
    finally:
        _current = previous
