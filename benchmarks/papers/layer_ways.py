"""One layer of attention by every way there is, as columns of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

from benchmarks.papers.experiment import Column, Row, Settings, say
from sharegen.bench.attention_case import Tree
from sharegen.bench.layer import Layer, Step, nothing_shared
from sharegen.bench.peer import FlashInfer
from sharegen.bench.timer import CpuTimer, Timer
from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.errors import CapacityError

WAYS = {
    "sharegen": "sharegen",
    "each": "each row",
    "torch": "torch",
    "flashinfer": "FlashInfer",
}
"""Headings by the names of fields. Nodes are stored once, and read by each row under them in the
second (PagedAttention's way); in the third every row has its whole context for itself."""

COLUMNS = tuple(Column(f"{way}_us", f"{heading} us", 1) for way, heading in WAYS.items())

WORK = (Column("mflop", "MFLOP", 1), Column("mb", "MB", 1), Column("intensity", "FLOP/byte", 2))
"""10^6 operations of a layer, 10^6 bytes that it moves at least, each key once, and their ratio."""


def times_of(
    step: Callable[[], Step | None], what: str, timer: Timer | CpuTimer, repeats: int
) -> list[float] | None:
    """Microseconds of a step that is made here; None where there is none, or memory runs out."""
    try:
        made = step()
        return None if made is None else timer.times(made, repeats)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        say(f"{what} is left out: it ran out of memory")
        return None


def measure_layer(
    tree: Tree, timer: Timer | CpuTimer, settings: Settings, peer: FlashInfer
) -> Row | None:
    """Median microseconds by way, and what the case moves and computes; None for want of room.

    sharegen is as the engine would do it. A way that has no room or is not here is left out.
    """
    try:
        layer = Layer(tree, settings.device, settings.dtype)
    except CapacityError as error:
        say(f"left out: {error}")
        return None

    def timed(way: str, step: Callable[[], Step | None]) -> float | None:
        times = times_of(step, f"{tree}, {WAYS[way]}", timer, settings.repeats)
        return None if times is None else median(times)

    row: Row = {"sharegen_us": timed("sharegen", layer.as_engine)}
    row["error"] = layer.tensors.error()
    row["each_us"] = timed("each", layer.read_by_each)
    row["flashinfer_us"] = timed("flashinfer", partial(peer.step, layer))
    del layer
    apart = partial(nothing_shared, tree, settings.device, settings.dtype)
    row["torch_us"] = timed("torch", apart)
    moved = tree.moved_bytes(settings.dtype.itemsize)
    work = {"mflop": tree.operations / 1e6, "mb": moved / 1e6}
    return row | work | {"intensity": tree.operations / moved}
