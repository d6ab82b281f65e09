"""The cost model of this GPU: what shared and private reading of KV take here, one layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from sharegen.bench.attention_case import TABLE, Case
from sharegen.bench.attention_tensors import Tensors
from sharegen.bench.timer import Timer
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import CostModel
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.shared import shared_attention

_NEVER = CostModel(sharing=float("inf"))
_LONG = Case(32, 8, 2048, 0, 1, 1024, 16)  # many rows under one prefix
_ALONE = Case(32, 8, 0, 1024, 512, 1, 16)  # every row its own prompt
_CACHED = Case(32, 8, 0, 1024, 32, 16, 16)  # prompts that several rows read, one after the other
_SMALL = Case(32, 8, 16, 0, 1, 32, 64)  # next to nothing to share


def fit_costs(device: torch.device) -> CostModel:
    """Measure the numbers of `CostModel` in bfloat16 on this GPU, the L2 cache cold."""
    timer = Timer(device)
    first = _per_sequence(_ALONE, timer, device) / _megabytes(_ALONE)
    per_row = _per_sequence(_CACHED, timer, device) / _megabytes(_CACHED)
    again = max(0.0, (per_row - first) / (_CACHED.samples - 1))
    sharing = _decode(_SMALL, None, timer, device) - _decode(_SMALL, _NEVER, timer, device)
    both = _decode(TABLE[0], None, timer, device, has_unshared=True)
    unshared = both - _decode(TABLE[0], None, timer, device)
    tile = _tile(timer, device)
    return CostModel(max(0.0, sharing), max(0.0, unshared), tile, first, again)


def _tile(timer: Timer, device: torch.device) -> float:
    """Microseconds of a program for one tile, from a launch that keeps all of them busy."""
    tensors = Tensors(_LONG, device)
    plan = AttentionPlan(tensors.shape, _LONG.rows, device)
    plan.update(tensors.layout)
    inputs = (tensors.q, tensors.k_cache, tensors.v_cache, plan, tensors.position)
    seconds = timer(partial(shared_attention, *inputs, scale=tensors.scale))
    unit = replace(CostModel(), tile=1.0, first=0.0)
    units = unit.shared(tensors.layout, tensors.shape, plan.tile, plan.slots).sum()
    return seconds / float(units)


def _per_sequence(case: Case, timer: Timer, device: torch.device) -> float:
    """Microseconds that the prompts of a case add when every row reads its own."""
    without = replace(case, few=0, problem=0)
    return _decode(case, _NEVER, timer, device) - _decode(without, _NEVER, timer, device)


def _decode(
    case: Case,
    costs: CostModel | None,
    timer: Timer,
    device: torch.device,
    has_unshared: bool = False,
) -> float:
    """Microseconds of a layer. has_unshared: as if some node were read per sequence."""
    tensors = Tensors(case, device)
    plan = AttentionPlan(tensors.shape, case.rows, device, costs=costs)
    plan.update(tensors.layout)
    plan.has_unshared |= has_unshared
    inputs = tensors.inputs(plan)
    return timer(partial(decode_attention, *inputs, scale=tensors.scale, out=tensors.out))


def _megabytes(case: Case) -> float:
    """The megabytes of the prompts' keys and values, each counted once."""
    return case.problems * case.problem * case.num_kv_heads * case.head_size * 2 * 2 / 1e6
