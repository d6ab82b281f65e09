"""How a decoding step on a GPU reads the prompts: each node once for all rows, or by each row.

The kernels' cost model decides that anew whenever the tree changes; this asks it about the first
batch of a job, so that `sharegen plan` can tell the decision and its reason.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.cache.stored_kv import NodeKV
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.schedule.batch_builder import Queries, shared_layout
from sharegen.job.sharing_plan import Each, LevelMode, each_of
from sharegen.kernels import tiles
from sharegen.kernels.cost import CostModel, LatentNodes, load_costs


def attention_modes(
    tree: PrefixTree,
    samples: Each,
    rows: int,
    shape: tiles.AttentionShape,
    costs: CostModel,
    programs: int,
    limit: int = tiles.HOPPER_SHARED_MEMORY,
    by_tree: bool = False,
) -> list[LevelMode]:
    """The decision for the first `rows` sequences of a job, by level.

    samples: of all prompts, or of each by its place; programs: of the shared phase that run at
    the same time; limit: bytes of shared memory that one may take; by_tree: whether the tree
    decides, in the deterministic mode.
    """
    counts = each_of(samples, sum(len(node.requests) for node in tree.nodes()))
    queries: list[Queries] = []
    num_rows = 0
    for node in tree.nodes():
        wanted = min(sum(counts[place] for place in node.requests), rows - num_rows)
        if wanted > 0:
            queries.append(Queries(node, range(num_rows, num_rows + wanted), node.length))
            num_rows += wanted
    nowhere = {node: NodeKV(fp8=node.alone and not by_tree) for node in tree.nodes()}
    layout = shared_layout(queries, nowhere, by_tree=by_tree)
    tile = tiles.beside_tile(shape, limit)
    apart = layout.alone
    if apart is None:
        apart = costs.choose_unshared(
            layout, shape, tile, programs, sharing=False, has_unshared=False
        )
    once, each = costs.shared(layout, shape, tile, programs), costs.per_sequence(layout, shape)
    found = []
    for level in range(int(layout.level.max(initial=-1)) + 1):
        of_level = layout.level == level
        found.append(
            LevelMode(
                level,
                int(of_level.sum()),
                int(apart[of_level].sum()),
                float(once[of_level].sum()),
                float(each[of_level].sum()),
            )
        )
    return found


def attention_modes_on(
    device: torch.device,
    model: LoadedModel,
    tree: PrefixTree,
    samples: Each,
    rows: int,
    by_tree: bool = False,
    latents: bool = False,
) -> list[LevelMode]:
    """Return the attention modes of a job on this device; none on a CPU, which reads nodes once.

    Empty, too, without attention. by_tree: as `attention_modes` takes it. latents: whether what few
    samples read lies as latents.

    Layers that differ are read alike: it is told of the first one.
    """
    if not model.layers:
        return []
    layer = model.layers[0]
    shape = tiles.AttentionShape(
        layer.num_heads, layer.num_kv_heads, layer.key_size, layer.value_size,
        tree.block_size, model.dtype,
    )  # fmt: skip
    limit = tiles.shared_memory_limit(device)
    if device.type != "cuda" or tiles.unsupported(shape, layer.scaling, limit) is not None:
        return []
    costs = load_costs(torch.cuda.get_device_name(device))
    if latents and layer.latent is not None:
        width = layer.latent.width(layer.key_size, model.dtype)
        costs = LatentNodes(**asdict(costs), width=width)
    programs = tiles.resident_programs(device, tiles.beside_tile(shape, limit))
    return attention_modes(tree, samples, rows, shape, costs, programs, limit, by_tree)
