"""Compiles for a Hopper card what calls of the kernels launch, on a machine that has none.

`python -m tests.kernels.compiled CASE` prints each kernel's name and its bytes of shared memory.
Triton's interpreter takes what its compiler does not, as a variable that becomes of another type in
a loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.runtime.jit import JITFunction, mangle_type

from sharegen.bench.attention_case import Case
from sharegen.bench.attention_tensors import Tensors
from sharegen.engine.model.fp8.products import E4M3, LEAST
from sharegen.kernels import (
    absolute,
    absolute_hopper,
    absolute_plan,
    block_groups,
    conv_step,
    delta_rule,
    draw,
    fp4_groups,
    gated_product,
    peer_sum,
    penalise,
    segments,
    shared_hopper,
    unsplit_product,
)
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import Decided
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.decode_latents import decode_latents
from sharegen.kernels.fp4_words import pack
from sharegen.kernels.fp8_groups import groups_of
from sharegen.kernels.fp8_rows import FP8Rows, gated_rows, rows_of
from sharegen.kernels.latents import Latents
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.merge import merge_partials
from sharegen.kernels.own_latents import store_latents
from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.rotate import rotate, rotate_and_store
from sharegen.kernels.store import store, store_fp8
from sharegen.kernels.tiles import AttentionShape
from tests.kernels.in_flight import written_in_flight

TARGET = GPUTarget("cuda", 90, 32)
CPU = torch.device("cpu")
CASE = Case(8, 2, 64, 32, 2, 8, 40)
LONG = Case(8, 2, 64, 32, 2, 2, 2500)
MANY = Case(8, 2, 64, 32, 2, 128, 40)  # rows, for which the shared phase has a kernel of its own
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20, "softcap": 30.0},
    "sinks": {"sinks": torch.zeros(8)},
}


def launch(kernel: JITFunction, *args: Any, grid: object, warmup: bool, **how: Any) -> None:
    """Instead of a launch."""
    given = dict(zip(kernel.arg_names, args, strict=False)) | how
    constants, signature, attributes = {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        value = given.pop(parameter.name)
        is_constant = parameter.is_constexpr or value is None
        signature[parameter.name] = "constexpr" if is_constant else mangle_type(value)
        if is_constant:
            constants[index,] = value
        elif _is_aligned(value):  # which lets loads be wide, and run ahead of products
            attributes[index,] = [["tt.divisibility", 16]]
    options = {name: value for name, value in given.items() if value is not None}
    of = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = of(kernel, signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=TARGET, options=options)
    assert not (found := written_in_flight(compiled.asm["cubin"])), (kernel.__name__, found[:3])
    if of is GluonASTSource:  # the compiler waits for each product where registers do not suffice
        intended, assembly = compiled.asm["ptx"], compiled.asm["sass"]  # of a long one not all
        asked, products = (intended.count(f"wgmma.{name}") for name in ("wait_group", "mma_async"))
        waits, done = (assembly.count(name) for name in ("WARPGROUP.DEPBAR", "HGMMA"))
        assert waits * products <= asked * done, kernel.__name__
    print(kernel.__name__, compiled.metadata.shared)


def _is_aligned(value: object) -> bool:
    """Whether Triton compiles for a pointer or a number that 16 divides, as it does at a launch."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0


def decode(case: Case, rows: bool = False, dtype: torch.dtype = torch.bfloat16, **how: Any) -> None:
    tensors = Tensors(case, CPU, dtype=dtype)
    for costs in (None, Decided(every=2)):
        plan = AttentionPlan(tensors.shape, case.rows, CPU, costs=costs)
        plan.update(tensors.layout)
        where = FP8Rows.empty(case.rows, case.num_heads * case.head_size, CPU, LEAST)
        decode_attention(
            *tensors.inputs(plan), fp8=tensors.fp8, scale=tensors.scale,
            rows=where if rows else None, **how,
        )  # fmt: skip


def deterministic() -> None:
    """Decodes with own tokens that are cut at fixed places, on what is said to be a Hopper card."""
    shared_hopper.is_hopper = lambda device: True
    of_dtypes = ((LONG, torch.bfloat16), (replace(LONG, fp8=True), torch.bfloat16))
    for case, dtype in (*of_dtypes, (LONG, torch.float16)):
        tensors = Tensors(case, CPU, dtype=dtype)
        for alone in (False, True):
            plan = AttentionPlan(tensors.shape, case.rows, CPU, deterministic=True)
            count = tensors.layout.num_nodes
            plan.update(replace(tensors.layout, alone=np.full(count, alone)))
            decode_attention(*tensors.inputs(plan), fp8=tensors.fp8, scale=tensors.scale)


def prefill(**how: Any) -> None:
    tensors = Tensors(CASE, CPU)
    plan = PrefillPlan(tensors.shape, CASE.rows, CPU)
    plan.update(tensors.layout, [0])
    k, v = (torch.zeros(CASE.rows, 2, 128, dtype=torch.bfloat16) for _ in range(2))
    position = torch.arange(CASE.rows, dtype=torch.int32)
    prefill_attention(
        tensors.q, k, v, tensors.k_cache, tensors.v_cache, plan, position, scale=0.1, **how
    )


def between() -> None:
    """Calls what stands around attention."""
    tensors = Tensors(replace(CASE, fp8=True), CPU)
    q, k = tensors.q, tensors.q[:, :2]
    angles = torch.zeros(2, len(q), 128, dtype=q.dtype)
    slots = torch.arange(len(q))
    assert tensors.fp8 is not None
    caches = tensors.k_cache, tensors.v_cache
    rotate(q, k, *angles)
    rotate_and_store(q, k, k, *angles, caches, slots)
    rotate_and_store(q, k, k, *angles, tensors.fp8, slots)
    store(k, k, *caches, slots)
    store_fp8(k, k, tensors.fp8, slots)
    shared, own, lse = q[:2], q[:, None].contiguous(), torch.zeros(len(q), 1, 8)
    start = torch.zeros(len(q) + 1, dtype=torch.int32)
    merge_partials(shared, lse[:2, 0].contiguous(), start, own, lse, torch.empty_like(q))
    rows_of(q.flatten(1), LEAST)
    gated_rows(q.flatten(1), q.flatten(1), LEAST)
    for size in (256, 4096, 12_288):
        x = torch.zeros(6, size, dtype=q.dtype)
        for up, by_columns in ((None, False), (None, True), (x, True)):
            groups_of(x, LEAST, up=up, by_columns=by_columns, rows=8)


def many_rows() -> None:
    """Decodes on what is said to be a Hopper card."""
    shared_hopper.is_hopper = lambda device: True
    decode(MANY)
    decode(replace(MANY, head_size=80))
    decode(MANY, dtype=torch.float16)


def gate() -> None:
    """Multiplies many rows, on what is said to be a card with so many processors."""
    x, weight = (torch.zeros(n, 256, dtype=torch.bfloat16) for n in (600, 512))
    gated_product.num_processors = lambda device: 132
    gated_product.gated_product(x, weight)
    gated_product.gated(x)


def unsplit(dtype: torch.dtype = torch.bfloat16) -> None:
    """Multiplies few rows in every tile that may be tried."""
    weight = torch.zeros(512, 256, dtype=dtype)
    for rows in (8, 64, 128, 256):
        for tile in unsplit_product.tiles_for(rows, 256, dtype):
            unsplit_product.unsplit_product(weight[:rows], weight, weight[:, 0], tile)


def groups() -> None:
    """Multiplies rows of experts, few and many of each."""
    weight = torch.zeros(4, 256, 384, dtype=torch.uint8).view(E4M3)
    scales, ends = torch.zeros(4, 2, 3), torch.zeros(4, dtype=torch.int32)
    for rows in (8, 64, 256, 1024):
        x, own = torch.zeros(rows, 384, dtype=torch.uint8).view(E4M3), torch.zeros(rows, 3)
        for which in (None, torch.zeros(rows, dtype=torch.int64)):
            block_groups.block_groups(x, own, which, weight, scales, ends)


def fp4() -> None:
    """Multiplies rows of experts in MXFP4, few and many of each."""
    words, scales = pack(*(torch.zeros(16, 384, n, dtype=torch.uint8) for n in (96, 6)))
    for rows in (32, 512, 1024, 4096):
        x, ends = torch.zeros(rows, 192, dtype=torch.bfloat16), torch.zeros(16, dtype=torch.int32)
        for which in (None, torch.zeros(rows, dtype=torch.int64)):
            fp4_groups.fp4_groups(x, which, words, scales, ends)


def any_tree(dtype: torch.dtype = torch.bfloat16) -> None:
    """Attends at absolute positions: a level of the tree and own tokens, and a prompt's chunk."""
    heads, kv_heads, size = 8, 2, 128
    cache = torch.zeros(20, 16, kv_heads, size, dtype=dtype)
    ints = {name: np.array(each, np.int32) for name, each in {
        "order": [0, 1], "length": [100], "position": [0], "level": [0], "row_start": [0],
        "row_end": [2], "block_start": [0, 7], "blocks": range(7),
    }.items()}  # fmt: skip
    flags = {"contiguous": np.array([True]), "fp8": np.array([False])}
    layout = SharedLayout(**ints, **flags)
    plan = absolute_plan.DecodingPlan(heads // kv_heads, 16, 4, CPU)
    plan.update(layout)
    q = torch.zeros(2, heads, size, dtype=dtype)
    tables, (prefix, position) = torch.zeros(2, 2).int(), torch.zeros(2, 2).int()
    absolute_hopper.num_processors = lambda device: 132
    for on_hopper in (False, True):
        absolute_hopper.is_hopper = lambda device, found=on_hopper: found
        absolute.absolute_attention(q, cache, cache, plan.plan, position, tables, prefix, scale=0.1)
    chunk = absolute_plan.prefill_plan(layout, [0, 2], torch.arange(2), heads // kv_heads, 16)
    absolute.absolute_attention(q, cache, cache, chunk, position, scale=0.1, softcap=30.0)


def sampling(dtype: torch.dtype = torch.bfloat16) -> None:
    """Calls what a step does behind the model, and the sum of two ranks before."""
    rows, vocabulary = 4, 50_000
    logits = torch.zeros(rows, vocabulary, dtype=dtype)
    one, which = torch.ones(rows), torch.zeros(rows, dtype=torch.int64)
    limits = one, which + vocabulary, one, one
    draw.draw(logits, logits, *limits, which, which, filtered=True)
    draw.draw(logits, logits.clone(), *limits, which, which, which, filtered=False)
    draw.draw(logits, logits, *limits, which, which, filtered=True, processed=True)
    draw.token_logprobs(logits, which[:, None], which)
    in_prompt = torch.zeros(rows, vocabulary, dtype=torch.bool)
    history = torch.zeros(rows, 9, dtype=torch.int32)
    penalise.penalise(logits, in_prompt, history, one, one, one)
    segments.segment_maxima(logits, 32)
    peer_sum.add_peers(logits[0], logits[1], logits[2], logits[3])


def latents(heads: int, rank: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Decodes where samples' own tokens are latents."""
    memory = torch.zeros(4, 16, heads * 2 * 128, dtype=dtype)
    keys, values = (x.unflatten(2, (heads, -1)) for x in memory.chunk(2, -1))
    weight = torch.zeros(heads * 192, rank, dtype=dtype)
    blocks = torch.zeros(8, 16, rank + 64, dtype=dtype)
    of_layer = Latents(blocks, weight, heads, 128, 64)
    shape = AttentionShape(heads, heads, 128, 128, 16, dtype)
    plan = AttentionPlan(shape, 4, CPU, costs=Decided(every=2))
    plan.has_unshared = True
    rows = torch.zeros(4, 2, dtype=torch.int32), *torch.zeros(2, 4, dtype=torch.int32)
    q = torch.zeros(4, heads, 128, dtype=dtype)
    decode_latents(q, keys, values, of_layer, plan, *rows, put=lambda: None, scale=0.1)
    store_latents(q[:, 0, :rank], q[:, 1, 64:], blocks, torch.arange(4))


def states(dtype: torch.dtype = torch.bfloat16) -> None:
    """Calls what changes the states of mixers."""
    count, heads, size = 4, 4, 64
    slots = torch.zeros(count, dtype=torch.int64)
    ring, weight = torch.zeros(9, 3, 256, dtype=dtype), torch.zeros(256, 4, dtype=dtype)
    x = torch.zeros(count, 256, 5, dtype=dtype)
    convolution = ring, slots, slots, slots, weight, None, "silu"
    conv_step.conv_step(x[..., :1], *convolution)
    conv_step.conv_chunk(x, *convolution)
    q, v = (torch.zeros(count, n, size, dtype=dtype) for n in (heads // 2, heads))
    beta, kept = torch.zeros(count, heads), torch.zeros(count, dtype=torch.int32)
    matrices = torch.zeros(9, heads, size, size)
    for decay in (beta, torch.zeros(count, heads, size)):
        delta_rule.delta_rule_step(q, q, v, decay, beta, matrices, slots, slots)
    delta_rule.delta_rule_step(q, q, v, beta, beta, matrices, slots, slots, kept)
    delta_rule.settle(matrices[None], slots, slots, kept, heads // 2, dtype)


CASES: dict[str, Callable[[], None]] = {
    "latents": lambda: [latents(20, 512), latents(16, 512, torch.float32), latents(128, 256)],
    "any tree": any_tree,
    "sampling": sampling,
    "states": states,
    "many rows": many_rows,
    "gate": gate,
    "unsplit": unsplit,
    "block groups": groups,
    "fp4": fp4,
    "between": between,
    "prefill": prefill,
    "deterministic": deterministic,
    "fp8 into rows": lambda: decode(replace(CASE, fp8=True), rows=True),
}
for _name, _how in HOW.items():
    CASES[_name] = lambda how=_how: decode(CASE, **how)  # type: ignore[misc]
    CASES[f"fp8, {_name}"] = lambda how=_how: decode(replace(CASE, fp8=True), **how)  # type: ignore[misc]

if __name__ == "__main__":
    JITFunction.run = launch
    CASES[sys.argv[1]]()
