"""The last layer, for those tokens alone whose logits are wanted.

Of a prompt only the last token's logits are wanted, and of the others nothing but the keys and
values that the last layer's attention stores. So its forward is left where attention is known, and
run again for the wanted rows, with what attention gave for these: most of a layer is saved. Both
runs are of the model's own code, whatever follows attention there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn


class WantedRows(NamedTuple):
    """Some rows of a forward's tokens.

    which: [R] int64; args, kwargs: what a layer is given beside its hidden states, of these rows.
    """

    which: torch.Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Attended(Exception):
    """Leaves a layer; result: of its attention, [T, Hq, Dv]."""

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result


class _Run:
    """What the layer that is running does with its attention.

    leaving: whether it is left with the result. result: [R, Hq, Dv] that it is given instead.
    """

    leaving = False
    result: torch.Tensor | None = None


_run = _Run()


def attended() -> torch.Tensor | None:
    """What the layer that is running is to take for its attention's result, if so."""
    return _run.result


def leave_with(result: torch.Tensor) -> None:
    """Leave the layer that is running, if it is to be left with its attention's result."""
    if _run.leaving:
        raise _Attended(result)


def for_rows(
    layer: nn.Module, rows: WantedRows, hidden: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """What the layer returns for these rows of hidden [1, T, size]. Its attention sees all."""
    _run.leaving = True
    try:
        layer._call_impl(hidden, *args, **kwargs)
        raise RuntimeError("the layer has no attention")
    except _Attended as stop:
        result = stop.result
    finally:
        _run.leaving = False
    if len(result) != hidden.shape[1]:
        raise RuntimeError(f"the layer has {hidden.shape[1]} tokens, its attention {len(result)}")
    _run.result = result.index_select(0, rows.which)
    try:
        return layer._call_impl(hidden.index_select(1, rows.which), *rows.args, **rows.kwargs)
    finally:
        _run.result = None


class Wanted:
    """Whether a forward of a model is for some of its rows alone; rows: which, [R]."""

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None

    @contextmanager
    def only(self, rows: torch.Tensor) -> Iterator[None]:
        """Open a block in which a forward of more rows is asked for the logits of these rows
        alone.
        """
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def of(
        self, hidden: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> WantedRows | None:
        """The wanted rows of what a layer is given; None where all are wanted."""
        if self.rows is None:
            return None
        tokens = hidden.shape[1]
        return WantedRows(self.rows, self._of(args, tokens), self._of(kwargs, tokens))

    def _of(self, given: Any, tokens: int) -> Any:
        """Take the wanted rows of what a layer is given: tensors [1, T, ...] of all tokens, others,
        and tuples or dicts of such.
        """
        if isinstance(given, tuple):
            return tuple(self._of(one, tokens) for one in given)
        if isinstance(given, dict):
            return {name: self._of(one, tokens) for name, one in given.items()}
        is_of_tokens = isinstance(given, torch.Tensor) and given.shape[:2] == (1, tokens)
        return given.index_select(1, self.rows) if is_of_tokens else given
