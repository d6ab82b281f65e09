"""The rotary embedding of a layer's queries and keys as a part of attention.

Attention can do it in one kernel, with which keys and values go into the cache. Model code says
`(x * cos) + (rotate_half(x) * sin)`, of both. The compiler sees it, so this is done in its graph,
where nothing of the model's code has to be matched. Code for heads of which a part is rotated says
it of whole heads, too, with nothing behind. Embeddings of other kinds, and those that come
after a norm or a bias, which the compiler does in the same kernels, are left as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import sharegen.engine.model.interface  # noqa: F401 (its operators)
from sharegen.engine.model.passes.graph_nodes import erase_unused, is_call, is_method, shape_of

_ATTEND = (torch.ops.sharegen.attend.default,)
_SUMS = (operator.add, torch.add)
_PRODUCTS = (operator.mul, torch.mul)
_NEGATIONS = (operator.neg, torch.neg)
_PROJECTIONS = (torch.nn.functional.linear, torch._scaled_mm)
_SAME_NUMBERS = ("view", "reshape", "transpose", "contiguous", "to", "split")  # methods


@dataclass(frozen=True)
class _Rotation:
    """A rotation: x [1, H, T, D] and what it is multiplied with, [1, T, D] each."""

    x: fx.Node
    cos: fx.Node
    sin: fx.Node


def rotations_into_attention(graph: fx.Graph) -> None:
    """Give attention the angles of queries and keys that are rotated alike, and these as before."""
    for node in [node for node in graph.nodes if is_call(node, _ATTEND)]:
        of_q, of_k = (_rotation(view) for view in node.args[:2])
        if of_q is None or of_k is None or (of_q.cos, of_q.sin) != (of_k.cos, of_k.sin):
            continue
        with graph.inserting_before(node):
            heads = [_by_token(graph, of.x) for of in (of_q, of_k)]
            angles = [_row(graph, of) for of in (of_q.cos, of_q.sin)]
        rotated = node.args[:2]
        node.args = (*heads, *node.args[2:], *angles)
        for view in rotated:
            erase_unused(graph, view)


def _by_token(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """Turn [1, H, T, D] into [T, H, D]."""
    return graph.call_method("transpose", (_row(graph, x), 0, 1))


def _row(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """Drop the first dimension, which is 1."""
    return graph.call_function(operator.getitem, (x, 0))


def _rotation(view: Any) -> _Rotation | None:
    """How what attention is given as [T, H, D] was rotated: a product, wanted by nobody else."""
    if not is_method(view, "transpose") or view.args[1:] != (0, 1) or len(view.users) > 1:
        return None
    first = view.args[0]
    if not is_call(first, (operator.getitem,)) or first.args[1] != 0 or len(first.users) > 1:
        return None
    total = _all_of_it(first.args[0])
    if not is_call(total, _SUMS) or len(total.users) > 1 or len(total.args) != 2 or total.kwargs:
        return None
    for plain, turned in (total.args, reversed(total.args)):
        for x, cos in _factors(plain):
            for half, sin in _factors(turned):
                if not _is_turned(half, x) or not _is_projected(x):
                    continue
                of_cos, of_sin = _of_token(cos, x), _of_token(sin, x)
                if of_cos is not None and of_sin is not None:
                    return _Rotation(x, of_cos, of_sin)
    return None


def _all_of_it(total: Any) -> Any:
    """What is put together with nothing, if it is; else what it is given."""
    if not is_call(total, (torch.cat,)) or len(total.users) > 1:
        return total
    pieces: Any
    pieces, *dim = total.args
    if (dim or [total.kwargs.get("dim")]) != [-1] or len(pieces) != 2:
        return total
    first, nothing = pieces
    return first if shape_of(nothing)[-1:] == (0,) else total


def _factors(product: Any) -> Iterable[tuple[fx.Node, fx.Node]]:
    """Return both orders of what is multiplied."""
    if not is_call(product, _PRODUCTS) or len(product.args) != 2 or product.kwargs:
        return ()
    one, other = product.args
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node):
        return ()
    return (one, other), (other, one)


def _is_turned(cat: Any, x: fx.Node) -> bool:
    """Whether it is (-x2, x1) of x's halves."""
    if not is_call(cat, (torch.cat,)):
        return False
    pieces: Any
    pieces, *dim = cat.args
    if (dim or [cat.kwargs.get("dim")]) != [-1] or len(pieces) != 2:
        return False
    negative, first = pieces
    if not is_call(negative, _NEGATIONS):
        return False
    return _is_half(negative.args[0], x, second=True) and _is_half(first, x, second=False)


def _is_half(piece: Any, x: fx.Node, second: bool) -> bool:
    """Whether it is one half of x's last dimension.

    What is cut at a node's number is known by its size: from a place to the end, or up to it.
    """
    if not is_call(piece, (operator.getitem,)) or piece.args[0] is not x:
        return False
    whole, half = shape_of(x), shape_of(piece)
    cut = piece.args[1]
    if not isinstance(cut, tuple) or len(cut) != 2 or cut[0] is not ... or not whole:
        return False
    part = cut[1]
    if not isinstance(part, slice) or part.step is not None:
        return False
    left_out = part.stop if second else part.start
    size = whole[-1]
    is_half = isinstance(size, int) and half == (*whole[:-1], size // 2) and size % 2 == 0
    return is_half and left_out is None


def _of_token(angles: fx.Node, x: fx.Node) -> fx.Node | None:
    """Return the factors [1, T, D] of which these are a view, if every head of x, [1, H, T, D], has
    the same ones.
    """
    if not is_method(angles, "unsqueeze") or angles.args[1:] != (1,):
        return None
    shape, source = shape_of(x), angles.args[0]
    is_alike = len(shape) == 4 and shape[0] == 1 and shape_of(source) == (1, *shape[2:])
    return source if is_alike and isinstance(source, fx.Node) else None


def _is_projected(x: fx.Node) -> bool:
    """Whether its numbers are those of a product, as they are."""
    while is_method(x, *_SAME_NUMBERS) or is_call(x, (operator.getitem,)):
        before = x.args[0]
        if not isinstance(before, fx.Node):
            return False
        x = before
    return is_call(x, _PROJECTIONS)
