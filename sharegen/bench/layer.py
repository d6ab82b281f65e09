"""One layer of decode attention, by each way to read what rows share: on a GPU and on a CPU."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sharegen.bench.attention_case import Tree
from sharegen.bench.attention_tensors import Tensors
from sharegen.bench.cascade import by_row, cascade_step
from sharegen.engine.execute.memory import memory_of_cpu
from sharegen.errors import CapacityError
from sharegen.kernels import flash
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import EACH_ROW, CostModel, load_costs

Step = Callable[[], Any]
"""Computes the layer once."""

_CPU_SHARE = 0.25  # of the machine, for what stores a prefix once a row
_GPU_SHARE = 0.9  # of what is free


class Layer:
    """The tensors of a case, and the steps that compute it.

    read_once: each shared node for all rows under it. as_engine: what the engine would do, which on
    a GPU reads nodes once where the cost model says that it pays. read_by_each: nodes are stored
    once, and each row reads them with its own tokens, as PagedAttention does. flashinfer: its best
    parts put together; None where it is not installed, on a CPU, and for FP8 beside others.

    Raises CapacityError where keys and values do not fit the device.
    """

    def __init__(self, case: Tree, device: torch.device, dtype: torch.dtype) -> None:
        need, free = case.moved_bytes(dtype.itemsize), room(device)
        if need > free:
            raise CapacityError(
                f"{case}: its tensors are {need:,} bytes, and there is room for {free:,.0f}: take "
                "fewer rows or shorter lengths"
            )
        self.case = case
        self.tensors = Tensors(case, device, dtype=dtype)
        self._device = device

    def read_once(self) -> Step:
        return self._decode(None)

    def as_engine(self) -> Step:
        if self._device.type == "cuda":
            return self._decode(load_costs(torch.cuda.get_device_name(self._device)))
        return self.read_once()

    def read_by_each(self) -> Step:
        return self._decode(EACH_ROW)

    def flashinfer(self) -> Step | None:
        is_there = importlib.util.find_spec("flashinfer") is not None
        if self._device.type != "cuda" or self.case.fp8 or not is_there:
            return None
        return cascade_step(self.tensors)

    def flashinfer_error(self, step: Step) -> float:
        """The largest error of what such a step computes, which runs, against float32."""
        return self.tensors.error(by_row(self.tensors, step()))

    def _decode(self, costs: CostModel | None) -> Step:
        tensors = self.tensors
        if self._device.type == "cuda":
            from sharegen.kernels.decode import decode_attention  # which needs Triton

            plan = AttentionPlan(
                tensors.shape, self.case.rows, self._device,
                costs=costs, fp8_suffixes=self.case.fp8,
            )  # fmt: skip
            plan.update(tensors.layout)
            return partial(
                decode_attention, *tensors.inputs(plan), fp8=tensors.fp8,
                scale=tensors.scale, out=tensors.out,
            )  # fmt: skip
        return self._decode_on_cpu(is_read_once=costs != EACH_ROW)

    def _decode_on_cpu(self, is_read_once: bool) -> Step:
        tensors, size = self.tensors, self.tensors.shape.block_size
        layout = tensors.layout if is_read_once else tensors.layout.row_by_row()
        plan = flash.FlashPlan(layout, size, self._device)
        where = (tensors.block_tables, tensors.prefix_length, tensors.position)
        token_numbers = tensors.k_cache[0, 0].numel()
        suffix = flash.FlashSuffixPlan(plan, size, *where, token_numbers)

        def step() -> None:
            tensors.out = flash.decode_attention(
                tensors.q, tensors.k_cache, tensors.v_cache, plan, suffix,
                fp8=tensors.fp8, scale=tensors.scale,
            )  # fmt: skip

        return step


def nothing_shared(case: Tree, device: torch.device, dtype: torch.dtype) -> Step | None:
    """Time torch's attention of every row over its whole context, which lies apart for each.

    None where so many copies have no room.
    """
    if not has_room_apart(case, device, dtype):
        return None
    sizes = _sizes_apart(case)
    k, v = (torch.empty(sizes, dtype=dtype, device=device).normal_() for _ in range(2))
    # The heads of a group as so many queries of one head: the keys are read once for all of them.
    group = case.num_heads // case.num_kv_heads
    q = k.new_empty(*sizes[:2], group, case.head_size).normal_()
    return partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)


def has_room_apart(case: Tree, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether each row's own copy of its context has room."""
    return 2 * math.prod(_sizes_apart(case)) * dtype.itemsize <= room(device)


def _sizes_apart(case: Tree) -> tuple[int, int, int, int]:
    return case.rows, case.num_kv_heads, case.context, case.head_size


def room(device: torch.device) -> float:
    """Return the bytes that a measurement may take for copies."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return _GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return _CPU_SHARE * memory_of_cpu()
