"""CUDA graphs of the decoding step: captured when first needed, replayed ever after."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

Outputs = tuple[torch.Tensor, ...]


class StepGraphs:
    """One graph for each key (rows, sampling features, ...), all in one memory pool.

    A replay overwrites the outputs of the one before.
    """

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Outputs]] = {}
        self._generation = 0
        self._pool: tuple[int, int] | None = None

    def run(
        self,
        key: Hashable,
        generation: int,
        step: Callable[[], Outputs],
        changing: Sequence[torch.Tensor],
    ) -> Outputs:
        """Replay the graph of `step`; capture it first where there is none.

        generation: when it changes, buffers that the graphs read have moved, and all are stale.
        changing: tensors that the step both reads and writes.
        """
        if generation != self._generation:
            self._graphs.clear()
            self._generation = generation
        if key not in self._graphs:
            self._graphs[key] = self._capture(step, changing)
        graph, outputs = self._graphs[key]
        graph.replay()
        return outputs

    def _capture(
        self, step: Callable[[], Outputs], changing: Sequence[torch.Tensor]
    ) -> tuple[torch.cuda.CUDAGraph, Outputs]:
        # Kernels compile when first run, which a capture forbids: run the step once, undone after.
        # What it stores in the KV cache is what the replay will store again.
        before = [tensor.clone() for tensor in changing]
        step()
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = step()
        self._pool = self._pool or graph.pool()
        return graph, outputs
