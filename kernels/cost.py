"""Whether a node is read once for all sequences under it (a shared read) or per sequence.

A shared read pays where many rows share many tokens. It does not for a node with a single row, nor
for a prefix so short that a second phase and a merge cost more than they save: others have measured
cascades at half speed there. FastTree makes the same choice between a node and its child.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.tiles import AttentionShape, Tile

# Microseconds of a layer that another choice must save: graphs are captured anew for it,
# perhaps for the last steps of a job.
_NEW_GRAPH = 30.0
_WARPS = 4  # of a program of `CostModel.tile`
_TILE_WORK = 64 * 64 * 256  # lines x keys x (key size + value size) of the tile in `CostModel.tile`

_Float = npt.NDArray[np.floating]


@dataclass(frozen=True)
class CostModel:
    """What one layer's attention takes on a device, in microseconds.

    sharing: to have a shared phase at all: its launch beside the suffixes, and the merge.
    unshared: to have unshared nodes while there is one: the programs of the suffix phase are
    larger then, and fewer of them run at the same time.
    tile: of a program of the shared phase of four warps, for 64 lines against 64 keys with 128 +
    128 numbers.
    first, again: to read a megabyte of keys and values from memory, and once more from the cache.
    The defaults are an H200's.
    """

    sharing: float = 2.9
    unshared: float = 1.8
    tile: float = 1.5
    first: float = 0.23
    again: float = 0.1

    def shared(self, layout: SharedLayout, shape: AttentionShape, tile: Tile, slots: int) -> _Float:
        """[num_nodes] the time of each node as a shared read.

        slots: programs that run at the same time. Bands of rows go through the matrix units, and
        the node through memory, whichever takes longer.
        """
        per_band = tile.lines // shape.group
        bands = (layout.row_end - 1) // per_band - layout.row_start // per_band + 1
        odd = (layout.row_start % per_band != 0).astype(int) + (layout.row_end % per_band != 0)
        # A band that is only partly under the node is masked, and costs about twice as much.
        bands = bands + np.minimum(odd, bands)
        tiles = bands * -(-layout.length // tile.keys) * shape.num_kv_heads
        work = tile.lines * tile.keys * (shape.key_size + shape.value_size) / _TILE_WORK
        work *= _WARPS / tile.num_warps
        precise = (shape.dtype.itemsize / 2) ** 2  # float32 products are no tensor core's business
        products = tiles * (self.tile * work * precise / slots)
        return np.maximum(products, _megabytes(layout, shape) * self.first)

    def per_sequence(self, layout: SharedLayout, shape: AttentionShape) -> _Float:
        """[num_nodes] the time of each node when it is read per sequence."""
        rows = layout.row_end - layout.row_start
        return _megabytes(layout, shape) * (self.first + (rows - 1) * self.again)

    def choose_unshared(
        self,
        layout: SharedLayout,
        shape: AttentionShape,
        tile: Tile,
        slots: int,
        sharing: bool,
        has_unshared: bool,
    ) -> npt.NDArray[np.bool_]:
        """[num_nodes] which nodes are best read per sequence, along with its own tokens.

        sharing: whether there is a shared phase anyway, so that it costs nothing to use it.
        has_unshared: whether nodes are read per sequence beside it so far.
        """
        shared = self.shared(layout, shape, tile, slots)
        per_sequence = self.per_sequence(layout, shape)
        chosen = per_sequence <= shared
        none, some = self.sharing, self.sharing + self.unshared
        every = some if sharing else 0.0
        if sharing and has_unshared:
            none += _NEW_GRAPH
        elif sharing:
            some += _NEW_GRAPH
            every += _NEW_GRAPH
        none += float(shared.sum())
        some += float(np.minimum(shared, per_sequence).sum())
        every += float(per_sequence.sum())
        if every <= min(some, none):
            return np.ones_like(chosen)
        return chosen if some < none else np.zeros_like(chosen)


@dataclass(frozen=True)
class Decided(CostModel):
    """A fixed choice, whatever it costs: one node in `every` is read per sequence, or none (0)."""

    every: int = 0

    def choose_unshared(self, layout: SharedLayout, *_: object) -> npt.NDArray[np.bool_]:
        index = np.arange(1, len(layout.length) + 1)
        return index % self.every == 0 if self.every else np.zeros(len(index), dtype=np.bool_)


@dataclass(frozen=True)
class LatentNodes(CostModel):
    """Nodes of latents are read per sequence, all others are shared: each form has its phase.

    width: numbers of a latent in the cache; 0 where nobody asks for times.
    """

    width: int = 0

    def shared(self, layout: SharedLayout, shape: AttentionShape, tile: Tile, slots: int) -> _Float:
        spread = replace(layout, fp8=np.zeros_like(layout.fp8))  # as it would have to be
        return super().shared(spread, shape, tile, slots)

    def per_sequence(self, layout: SharedLayout, shape: AttentionShape) -> _Float:
        rows = layout.row_end - layout.row_start
        megabytes = layout.length * (self.width * shape.dtype.itemsize / 1e6)
        return megabytes * (self.first + (rows - 1) * self.again)

    def choose_unshared(self, layout: SharedLayout, *_: object) -> npt.NDArray[np.bool_]:
        return layout.fp8


LATENT_NODES = LatentNodes()


def most_latent_readers(num_heads: int, numbers: int, rank: int, width: int) -> int:
    """Rows that read a node as latents, each for itself, in the time of one shared read of it.

    numbers: of one head's key and value; width: of a token's latent in the cache. Latents are fewer
    bytes, and their products longer: q . k takes `width` numbers, the sum over values `rank`.
    """
    bytes_of_latents = num_heads * numbers / width
    return max(1, int(bytes_of_latents * numbers / (width + rank)))


EACH_ROW = Decided(every=1)
"""Nodes are stored once, and read per sequence: PagedAttention's way, to compare with."""


def _megabytes(layout: SharedLayout, shape: AttentionShape) -> _Float:
    numbers = shape.num_kv_heads * (shape.key_size + shape.value_size)
    return layout.length * np.where(layout.fp8, 1, shape.dtype.itemsize) * (numbers / 1e6)


def cost_file(device_name: str) -> Path:
    """Where what was fitted on a device is kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sharegen" / f"cost-{device_name.replace(' ', '-').replace('/', '-')}.json"


def save_costs(costs: CostModel, device_name: str) -> Path:
    """Keep what was fitted; raises OSError where that cannot be written."""
    path = cost_file(device_name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n", encoding="utf-8")
    return path


def load_costs(device_name: str) -> CostModel:
    """What was fitted on such a device, the defaults where nothing was or the file is damaged."""
    try:
        found = json.loads(cost_file(device_name).read_text(encoding="utf-8"))
        return CostModel(**{field.name: float(found[field.name]) for field in fields(CostModel)})
    except (OSError, ValueError, KeyError, TypeError):
        return CostModel()
