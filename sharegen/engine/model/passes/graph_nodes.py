"""Questions about nodes of the graph that Dynamo traces, for the passes over it."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import fx


def is_call(node: Any, targets: tuple[Any, ...]) -> TypeGuard[fx.Node]:
    """Whether it calls one of these functions."""
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def is_method(node: Any, *names: str) -> TypeGuard[fx.Node]:
    """Whether it calls a method of one of these names."""
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target in names


def value_of(node: Any) -> torch.Tensor | None:
    """A tensor like the one that it computes, without numbers; None where it computes another."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: Any) -> tuple[Any, ...]:
    """The shape of the tensor that a node computes; empty where it computes no tensor."""
    value = value_of(node)
    return () if value is None else tuple(map(_settled, value.shape))


def _settled(size: Any) -> Any:
    """A size that turned out to be a number after it was traced, as that number."""
    known = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
    return size if known is None else known


def erase_unused(graph: fx.Graph, node: Any) -> None:
    """Take it out if nothing wants it, and then what was computed for it alone."""
    if isinstance(node, fx.Node) and not node.users and node.op != "placeholder":
        before = node.all_input_nodes
        graph.erase_node(node)
        for one in before:
            erase_unused(graph, one)
