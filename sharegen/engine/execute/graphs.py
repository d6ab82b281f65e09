"""CUDA graphs of the decoding step: captured when first needed, replayed ever after."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.execute.room import Room
from sharegen.engine.model.tensor_parallel.ranks import Ranks

Outputs = tuple[torch.Tensor, ...]
Key = tuple[int, Hashable]  # rows, and what else

_FEW = 4  # steps, as of a warm-up, or of a batch that is being filled


class StepGraphs:
    """One graph for each number of rows and kind of step, all in one memory pool.

    A replay overwrites the outputs of the one before. A model that cannot be captured (one whose
    experts are chosen on the host, say) runs step by step, and a warning says why.

    Args:
        ranks: where the model is one rank's shard. A step is captured on all ranks, or on none.
        room: agrees between ranks whether there is memory for a capture.
    """

    def __init__(self, ranks: Ranks | None = None, room: Room | None = None) -> None:
        self._ranks = ranks
        self._room = room
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, Outputs]] = {}
        self._asked: dict[Key, int] = {}  # how often, while a larger one served
        self._generation = 0
        self._pool: Any = None  # torch names the type of a pool in private
        self._stream: torch.cuda.Stream | None = None  # torch's own is of the first GPU captured on
        self._refused = False

    def run(
        self,
        rows: int,
        kind: Hashable,
        generation: int,
        step: Callable[[int], Outputs],
        changing: Sequence[torch.Tensor],
        set_aside: Callable[[], None] | None = None,
    ) -> Outputs:
        """Replay the graph of `step(rows)`; capture it first where there is none.

        A graph of more rows serves as well, their further rows being dead, while few steps have
        asked for theirs.

        Args:
            rows: rows of the step.
            kind: what else tells graphs apart.
            generation: when it changes, buffers that the graphs read have moved, and all are stale.
            step: computes a step of so many rows.
            changing: tensors that the step both reads and writes.
            set_aside: changes some of these for the step that is run before the capture, so that it
                leaves alone what else goes on with every step.

        Returns:
            The step's outputs, which the next replay overwrites.
        """
        if generation != self._generation:
            self.clear()
            self._generation = generation
        key = self._serving(rows, kind)
        if key not in self._graphs and not self._refused:
            if self._room is not None:
                self._room.for_capture(rows, self._give_back)
            reason = None
            try:
                self._graphs[key] = self._capture(lambda: step(rows), changing, set_aside)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                reason = str(error).strip().splitlines()[0]
            if self._ranks is not None and not self._ranks.least(reason is None):
                reason = reason or "another rank's step cannot be captured"
            if reason is not None:
                self._refused = True
                self.clear()
                warnings.warn(f"decoding without CUDA graphs: {reason:.200}", stacklevel=2)
        if self._refused:
            if self._room is not None:
                self._room.for_decode(rows)
            return step(rows)
        graph, outputs = self._graphs[key]
        graph.replay()
        return outputs

    def _serving(self, rows: int, kind: Hashable) -> Key:
        """The graph to take: of so many rows, or while few steps have asked for it a larger one."""
        key = (rows, kind)
        larger = [size for size, other in self._graphs if other == kind and size > rows]
        if key in self._graphs or not larger:
            return key
        self._asked[key] = self._asked.get(key, 0) + 1
        return key if self._asked[key] > _FEW else (min(larger), kind)

    def clear(self) -> None:
        """Forget all graphs."""
        self._graphs.clear()
        self._asked.clear()
        self._pool = None  # a pool ends with its last graph

    def _give_back(self) -> None:
        """The memory of all graphs, of which the last may still run."""
        torch.cuda.synchronize()
        self.clear()
        torch.cuda.empty_cache()

    def _capture(
        self,
        step: Callable[[], Outputs],
        changing: Sequence[torch.Tensor],
        set_aside: Callable[[], None] | None,
    ) -> tuple[torch.cuda.CUDAGraph, Outputs]:
        # Kernels compile when first run, which a capture forbids: run the step once, undone after.
        # What it stores in the KV cache is what the replay will store again.
        before = [tensor.clone() for tensor in changing]
        if set_aside is not None:
            set_aside()
        step()
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        self._stream = self._stream or torch.cuda.Stream()
        # Other threads, such as the one that watches over NCCL, go on as they like meanwhile.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = step()
        self._pool = self._pool or graph.pool()
        return graph, outputs
