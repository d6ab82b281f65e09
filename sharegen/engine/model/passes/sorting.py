"""Tokens brought together by their experts: sorted by 16 bits, where the model sorts by 64.

transformers' grouped experts sort the numbers of experts, which a GPU does in as many passes as a
number has digits, in every layer. The numbers are few, so their order is the same by 16 bits. The
compiler sees how many experts there are where their tokens are counted, so this is done in its
graph.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from sharegen.engine.model.passes.graph_nodes import erase_unused, is_call, is_method, value_of

_SORTS = (torch.sort,)
_MOST = torch.iinfo(torch.int16).max


def experts_sorted_by_few_bits(graph: fx.Graph) -> None:
    """Sort the numbers of experts as 16 bits; what is made of them is as before."""
    for node in [node for node in graph.nodes if is_call(node, _SORTS)]:
        numbers = node.args[0]
        if len(node.args) > 1 or node.kwargs or not _are_experts(node, numbers):
            continue
        with graph.inserting_before(node):
            few = graph.call_method("to", (numbers, torch.int16))
            both = graph.call_function(torch.sort, (few,))
            inner, order = (graph.call_function(operator.getitem, (both, i)) for i in range(2))
            values = graph.call_method("to", (inner, torch.int64))
        for user in list(node.users):
            made = order if user.args[1] == 1 else values
            made.meta = user.meta
            user.replace_all_uses_with(made)
            graph.erase_node(user)
        erase_unused(graph, node)


def _are_experts(node: fx.Node, numbers: object) -> bool:
    """Whether these are numbers of experts, by the count of them that follows, and few enough.

    The number behind the last may be among them: a token's that another process has.
    """
    found = value_of(numbers)
    if found is None or found.dtype != torch.int64 or found.ndim != 1:
        return False
    if not all(is_call(user, (operator.getitem,)) for user in node.users):
        return False
    values = [user for user in node.users if user.args[1] == 0]
    counts = [count for value in values for kind in value.users for count in _counts(kind)]
    return any(isinstance(count, int) and count < _MOST for count in counts)


def _counts(node: fx.Node) -> list[object]:
    """The numbers of experts, of those that count what is turned into another dtype here."""
    if not is_method(node, "int", "float"):
        return []
    return [
        user.kwargs["bins"]
        for user in node.users
        if is_call(user, (torch.histc,)) and user.kwargs.get("min") == 0 and "bins" in user.kwargs
    ]
