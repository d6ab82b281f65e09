"""One layer of attention by every way there is, as columns of an experiment."""

from __future__ import annotations

from statistics import median

from sharegen.bench.attention_case import Tree
from sharegen.bench.layer import Layer, Step, nothing_shared
from sharegen.bench.papers.experiment import Column, Row, Settings, say
from sharegen.bench.timer import CpuTimer, Timer
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


def measure_layer(tree: Tree, timer: Timer | CpuTimer, settings: Settings) -> Row | None:
    """Median microseconds by way, and what the case moves and computes; None for want of room.

    sharegen is as the engine would do it. A way that has no room or is not here is left out.
    """
    try:
        layer = Layer(tree, settings.device, settings.dtype)
    except CapacityError as error:
        say(f"left out: {error}")
        return None

    def timed(step: Step | None) -> float | None:
        return None if step is None else median(timer.times(step, settings.repeats))

    row: Row = {"sharegen_us": timed(layer.as_engine())}
    row["error"] = layer.tensors.error()
    row["each_us"] = timed(layer.read_by_each())
    if "flashinfer" in settings.peers:
        row["flashinfer_us"] = timed(layer.flashinfer())
    del layer
    row["torch_us"] = timed(nothing_shared(tree, settings.device, settings.dtype))
    moved = tree.moved_bytes(settings.dtype.itemsize)
    work = {"mflop": tree.operations / 1e6, "mb": moved / 1e6}
    return row | work | {"intensity": tree.operations / moved}
