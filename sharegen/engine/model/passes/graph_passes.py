"""What is done in the graph of compiled layers before the compiler takes its operators apart."""

from __future__ import annotations

from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from sharegen.engine.model.passes import (
    attending,
    choosing,
    gating,
    graph_nodes,
    rotating,
    sorting,
    steadying,
)
from sharegen.engine.model.passes.attending import attention_into_rows
from sharegen.engine.model.passes.gating import gates_into_products, gates_into_rows
from sharegen.engine.model.passes.rotating import rotations_into_attention
from sharegen.engine.model.passes.sorting import experts_sorted_by_few_bits
from sharegen.engine.model.passes.steadying import products_held


class GraphPasses(CustomGraphPass):  # type: ignore[misc]
    """Puts a kernel of ours where the compiler would write several: each where it finds its own.

    steady: whether a row's products are not to depend on the other rows.
    """

    def __init__(self, steady: bool = False) -> None:
        self._steady = steady

    def __call__(self, graph: fx.Graph) -> None:
        rotations_into_attention(graph)
        attention_into_rows(graph)
        gates_into_rows(graph)
        gates_into_products(graph)
        experts_sorted_by_few_bits(graph)
        if self._steady:
            products_held(graph)

    def uuid(self) -> Any:
        # The compiler keeps what it made of a graph, and does not ask what it was told to choose.
        passes = (attending, choosing, gating, graph_nodes, rotating, sorting, steadying)
        files = get_hash_for_files((__file__, *(module.__file__ for module in passes)))
        return files, self._steady
