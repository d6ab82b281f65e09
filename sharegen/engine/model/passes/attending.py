"""Attention whose result is only wanted in FP8, for the projection that follows: one pass less.

What ends a step's attention has a row's heads at hand, and so can write them as FP8 at once. The
compiler sees that nothing else wants them, so this is done in its graph.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

import sharegen.engine.model.interface  # noqa: F401 (its operators)
from sharegen.engine.model.fp8 import products as fp8
from sharegen.engine.model.passes.graph_nodes import erase_unused, is_call, is_method, shape_of

_ATTEND = torch.ops.sharegen.attend.default
_ATTEND_ROWS = torch.ops.sharegen.attend_rows.default
_VIEWS = ("unsqueeze", "contiguous", "reshape", "view", "flatten")
"""Methods that leave the order of numbers as it is, of a tensor that is contiguous."""


def attention_into_rows(graph: fx.Graph) -> None:
    """Put `attend_rows` in the place of attention that is quantised, a token's heads as one row."""
    for node in [node for node in graph.nodes if is_call(node, fp8.QUANTISE)]:
        attention = _attention(node)
        if attention is None:
            continue
        with graph.inserting_before(node):
            both = graph.call_function(_ATTEND_ROWS, attention.args)
            parts = [graph.call_function(operator.getitem, (both, i)) for i in range(2)]
            for _ in shape_of(node.args[0])[2:]:
                parts = [graph.call_method("unsqueeze", (part, 0)) for part in parts]
        for user in list(node.users):
            user.replace_all_uses_with(parts[0 if user.args[1] == 0 else 1])
            graph.erase_node(user)
        erase_unused(graph, node)


def _attention(node: fx.Node) -> fx.Node | None:
    """The attention of which nothing is wanted but what is quantised here, as whole rows."""
    if not all(is_call(user, (operator.getitem,)) for user in node.users):
        return None
    inner = node.args[0]
    while is_method(inner, *_VIEWS) and len(inner.users) == 1:
        inner = inner.args[0]
    if not is_call(inner, (_ATTEND,)) or len(inner.users) > 1:
        return None
    tokens, heads, size = shape_of(inner)
    *outer, count, width = shape_of(node.args[0])
    is_row = (count, width) == (tokens, heads * size) and all(length == 1 for length in outer)
    return inner if is_row and _is_held(heads, size) else None


def _is_held(heads: int, size: int) -> bool:
    """Whether one program can."""
    from sharegen.kernels.merge import whole_row  # which needs Triton

    return whole_row(heads, size) is not None
