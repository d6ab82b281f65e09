"""FP8 weights of a rank's part.

The numbers and the scales are those of the whole model on one GPU: of a row that is cut the ranks
agree on the largest number. Only activations are scaled by each rank for the numbers that it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from sharegen.engine.model.fp8 import largest_of_rows
from sharegen.engine.model.partition import Cut, Partition
from sharegen.engine.model.quantising import Place, install, naming, quantise
from sharegen.engine.model.ranks import Ranks
from sharegen.engine.model.unread import Unread


def quantise_part(
    part: PreTrainedModel, found: Sequence[Place], plan: Partition, ranks: Ranks, name: str
) -> None:
    """Make these weights FP8, on the rank's device. All ranks must.

    Of what is not read yet one weight's part is read at a time. name: of the model. Raises
    ModelError where numbers are not finite.
    """
    for place in found:
        weight = part.get_parameter(place.name).detach()
        if isinstance(weight, Unread):
            weight = weight.read(ranks.device)
        largest = _of_whole_rows(weight, place, plan, ranks)
        with naming(name, place.name):
            rows = quantise(weight, place.is_transposed, ranks.device, largest)
        install(part, place, rows)


def _of_whole_rows(
    weight: torch.Tensor, place: Place, plan: Partition, ranks: Ranks
) -> torch.Tensor | None:
    """[..., N, 1]: the largest numbers of rows of which each rank has a part; None if of none."""
    cut = plan.cuts.get(place.name)
    along = weight.ndim - (2 if place.is_transposed else 1)
    if not isinstance(cut, Cut) or cut.dim != along:
        return None
    rows = weight.transpose(-2, -1) if place.is_transposed else weight
    own = largest_of_rows(rows).float()
    # What is no number must be one that all learn of: a maximum may pass over it.
    return ranks.largest(own.nan_to_num(nan=math.inf, posinf=math.inf).contiguous())
