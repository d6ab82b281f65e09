"""A residual added where ranks add up a product: one pass over the hidden states less.

Model code says `residual + down_proj(x)`, and the projection of a rank's shard ends in a sum over
all ranks. The compiler sees both, so this is done in its graph, where nothing of the model's code
has to be matched; whatever comes between the two, as a norm in olmo2, leaves them as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

import sharegen.engine.model.tensor_parallel.ranks  # noqa: F401 (its operators)

_operators = torch.ops.sharegen
_SUMS = {
    _operators.linear_sum.default: _operators.linear_sum_onto.default,
    _operators.fp8_linear_sum.default: _operators.fp8_linear_sum_onto.default,
}  # which take what is added before the group's name


class SumsOntoResiduals(CustomGraphPass):  # type: ignore[misc]
    """Puts `..._onto` in the place of a sum over ranks that is added to something."""

    def __call__(self, graph: fx.Graph) -> None:
        for plain, onto in _SUMS.items():
            for node in list(graph.find_nodes(op="call_function", target=plain)):
                users = list(node.users)
                if len(users) == 1 and (base := _base(users[0], node)) is not None:
                    _put(graph, onto, node, users[0], base)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _put(graph: fx.Graph, onto: Any, node: fx.Node, add: fx.Node, base: fx.Node) -> None:
    """Put `onto` in the place of a sum and of its addition to base."""
    *product, group = node.args
    with graph.inserting_before(add):
        both = graph.call_function(onto, (*product, base, group))
    both.meta = add.meta
    add.replace_all_uses_with(both)
    graph.erase_node(add)
    graph.erase_node(node)


def _base(add: fx.Node, node: fx.Node) -> fx.Node | None:
    """What a sum is added to, if that is of the same shape and dtype."""
    if add.target is not torch.ops.aten.add.Tensor or add.kwargs:
        return None
    others = [other for other in add.args if other is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node):
        return None
    base: fx.Node = others[0]
    own, its = node.meta["val"], base.meta.get("val")
    if not isinstance(its, torch.Tensor) or its.shape != own.shape or its.dtype != own.dtype:
        return None
    return base
