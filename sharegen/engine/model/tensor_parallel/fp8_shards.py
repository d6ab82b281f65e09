"""FP8 weights of a rank's shard.

The numbers and the scales are those of the whole model on one GPU: the checkpoint's, or where a row
is cut the ranks agree on its largest number. Only activations are scaled by each rank for the
numbers that it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.loading import (
    RowCount,
    as_stored,
    expect_scales,
    usable_scale,
)
from sharegen.engine.model.fp8.products import largest_of_rows
from sharegen.engine.model.fp8.quantising import (
    Place,
    ScaledRows,
    begin_quantising,
    fit,
    install,
    naming,
    places,
    refuse_infinite,
)
from sharegen.engine.model.fp8.stored_fp8 import StoredFP8
from sharegen.engine.model.stored.dequantised import is_small
from sharegen.engine.model.stored.unread import Unread
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.sharding_plan import ShardSpec, TensorParallelPlan
from sharegen.errors import ModelError


def places_of_shards(
    whole: PreTrainedModel, plan: TensorParallelPlan, name: str, stored: StoredFP8 | None
) -> list[Place]:
    """The weights of a model on torch's meta device that are FP8 on its ranks.

    name: of the model; stored: how the checkpoint has them, if it does. Raises ModelError where a
    shard of those has sizes that tensor cores do not take.
    """
    if stored is None:
        return places(whole, plan.shards_of)
    found = expect_scales(whole, name, stored)
    for place in found:
        if not fit(plan.shards_of, place.name, whole.get_parameter(place.name)):
            raise ModelError(
                f"model {name} cannot be cut into {plan.size} shards: its {place.name} is FP8, of "
                "which a shard has a size that is no multiple of 16"
            )
    return found


def quantise_shard(
    shard: PreTrainedModel,
    found: Sequence[Place],
    plan: TensorParallelPlan,
    ranks: Ranks,
    name: str,
) -> None:
    """Make these weights FP8, on the rank's device. All ranks must.

    Of what is not read yet one weight's shard is read at a time; the GPU is waited for at the end,
    once. name: of the model. Raises
    ModelError where numbers are not finite.
    """
    count = RowCount()
    made: dict[Place, ScaledRows] = {}
    for place in found:
        weight = shard.get_parameter(place.name).detach()
        powers = is_small(weight)
        if isinstance(weight, Unread):
            weight = weight.read(ranks.device)
        largest = _of_whole_rows(weight, place, plan, ranks)
        rows = begin_quantising(weight, place.is_transposed, ranks.device, largest, powers)
        if powers:
            count.add(rows)
        install(shard, place, rows)
        made[place] = rows
    for place, rows in made.items():
        with naming(name, place.name):
            refuse_infinite(rows)
    count.tell(name)


def install_stored_shard(
    shard: PreTrainedModel,
    scales: Mapping[Place, torch.Tensor],
    plan: TensorParallelPlan,
    ranks: Ranks,
    name: str,
) -> None:
    """Put these weights, which the checkpoint has in FP8, where the shard has what is not read yet.

    scales: of whole weights, [N, 1] or [1] each. name: of the model. Raises ModelError where
    numbers or scales are none.
    """
    for place, whole_scale in scales.items():
        weight = shard.get_parameter(place.name).detach()
        spec = plan.shards.get(place.name)
        with naming(name, f"{place.name}_scale"):
            rows = len(weight) if whole_scale.numel() == 1 else len(whole_scale)
            scale = usable_scale(whole_scale, rows)
        if isinstance(spec, ShardSpec) and spec.dim == 0 and whole_scale.numel() > 1:
            scale = spec.take(scale, ranks.rank, ranks.size)
        with naming(name, place.name):
            assert isinstance(weight, Unread)
            values = as_stored(weight.read(ranks.device))
        install(shard, place, ScaledRows(values, scale.to(ranks.device).contiguous()))


def _of_whole_rows(
    weight: torch.Tensor, place: Place, plan: TensorParallelPlan, ranks: Ranks
) -> torch.Tensor | None:
    """Return [..., N, 1], the largest numbers of rows of which each rank has a shard; None if of
    none.
    """
    spec = plan.shards.get(place.name)
    along = weight.ndim - (2 if place.is_transposed else 1)
    if not isinstance(spec, ShardSpec) or spec.dim != along:
        return None
    rows = weight.transpose(-2, -1) if place.is_transposed else weight
    own = largest_of_rows(rows).float()
    # What is no number must be one that all learn of: a maximum may pass over it.
    return ranks.largest(own.nan_to_num(nan=math.inf, posinf=math.inf).contiguous())
