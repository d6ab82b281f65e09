"""FP8 keys and values: their numbers, how they are stored, and attention that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from sharegen.kernels import reference
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import CostModel, Decided
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.fp8_blocks import NAN, FP8Blocks, from_fp8, least_exponent, to_fp8
from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.store import store_fp8
from sharegen.kernels.suffix import suffix_attention
from sharegen.kernels.tiles import AttentionShape, Tile
from tests.kernels.trees import (
    DEVICE,
    Batch,
    assert_close,
    assert_guard,
    each_dtype,
    guarded,
    make_shape,
    naive_decode,
    naive_row,
    prompt_layout,
    random_batch,
    random_tree,
)

SMALL = Tile(lines=16, keys=16, num_warps=4, num_stages=2)
ATTENTION_MODES = {"shared": None, "per sequence": Decided(every=1), "mixed": Decided(every=2)}
each_mode = pytest.mark.parametrize("costs", ATTENTION_MODES.values(), ids=ATTENTION_MODES)
each_store = pytest.mark.parametrize(
    "put", [store_fp8, reference.store_fp8], ids=["kernel", "reference"]
)


def slow_in_interpreter(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that take long there; on a GPU they run with the others."""
    return pytest.mark.slow(test) if DEVICE.type == "cpu" else test


# -- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 447.9, 448.0, 448.1, 7e4, 1e30])
def test_a_number_is_off_by_a_sixteenth_at_most(size: float) -> None:
    """And below a 28,672th of the row's largest by half a step of the last numbers."""
    x = torch.randn(50, 97, generator=torch.Generator().manual_seed(0))
    x = x / x.abs().amax(-1, keepdim=True) * size
    x[0, ::2], x[1] = 0.0, size
    numbers, exponents = to_fp8(x, 1)
    error = (from_fp8(numbers, exponents) - x).abs()
    assert (error <= torch.maximum(x.abs() / 16, torch.tensor(size / 448 / 512))).all()
    assert (from_fp8(numbers, exponents)[x == 0] == 0).all()


def test_rows_of_zeros_and_of_powers_of_two_are_exact() -> None:
    x = torch.zeros(3, 8)
    x[1] = 2.0 ** torch.arange(-10, -2)
    x[2] = torch.tensor([448.0, -416.0, 0.0, 1.75, 0.125, -1.0, 3.25, 2.0**-6])
    assert torch.equal(from_fp8(*to_fp8(x, 1)), x)


# -- storing ----------------------------------------------------------------------------------


def empty(blocks: int, shape: AttentionShape) -> FP8Blocks:
    """Blocks that hold no number: whoever reads one of them finds a NaN."""
    size, heads = shape.block_size, shape.num_kv_heads

    def nans(width: int) -> torch.Tensor:
        bytes_ = torch.full((blocks, size, heads, width), 0x7F, dtype=torch.uint8, device=DEVICE)
        return bytes_.view(torch.float8_e4m3fn)

    scales = torch.full((blocks, heads, 2, size), NAN, dtype=torch.uint8, device=DEVICE)
    return FP8Blocks(nans(shape.key_size), nans(shape.value_size), scales)


@each_dtype
@pytest.mark.parametrize("sizes", [(64, 64), (24, 40)])
def test_the_kernel_stores_what_the_reference_does(
    sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    shape = make_shape(2, 2, dtype, key_size=sizes[0], value_size=sizes[1])
    generator = torch.Generator().manual_seed(0)
    k, v = (
        (
            torch.randn(9, 2, size, generator=generator)
            * 10 ** torch.arange(-4.0, 5)[:, None, None]
        ).to(DEVICE, dtype)
        for size in sizes
    )
    k[1], v[2] = 0.0, 0.0
    k[3, 0, 5], k[4, 1, -1], v[5, 0, 0], v[6, 1, 7] = torch.nan, -torch.inf, torch.inf, torch.nan
    v[8] = torch.finfo(dtype).max
    slots = torch.tensor([3, 17, -1, 40, 5, 16, 33, 1, 0], device=DEVICE)
    mine, theirs = empty(4, shape), empty(4, shape)
    store_fp8(k, v, mine, slots)
    reference.store_fp8(k, v, theirs, slots)
    for a, b in zip(vars(mine).values(), vars(theirs).values(), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@each_store
def test_what_is_not_finite_is_a_key_of_nan(put: Callable[..., None]) -> None:
    """In that head, and its values are 0: whatever is masked is still multiplied by 0."""
    shape = make_shape(2, 2, torch.float32)
    k, v = (torch.ones(4, 2, 64, device=DEVICE) for _ in range(2))
    k[0, 0, 3], k[1, 1, 0], v[2, 0, 1] = torch.nan, torch.inf, -torch.inf
    cache = empty(1, shape)
    put(k, v, cache, torch.arange(4, device=DEVICE))
    keys, values = reference.read_fp8(cache, torch.arange(4, device=DEVICE))
    bad = torch.tensor([[True, False], [False, True], [True, False], [False, False]], device=DEVICE)
    assert torch.equal(keys.isnan().any(-1), bad) and torch.equal(keys[~bad], k[~bad])
    assert (values[bad] == 0).all() and torch.equal(values[~bad], v[~bad])


def test_values_at_the_end_of_float16_stay_finite() -> None:
    v = torch.full((1, 1, 64), torch.finfo(torch.float16).max, dtype=torch.float16)
    cache = empty(1, make_shape(1, 1, torch.float16))
    slots = torch.zeros(1, dtype=torch.int64)
    on_cpu = FP8Blocks(*(tensor.cpu() for tensor in vars(cache).values()))
    reference.store_fp8(v, v, on_cpu, slots)
    values = reference.read_fp8(on_cpu, slots)[1]
    assert values.half().isfinite().all() and (values == 61_440).all()
    assert least_exponent(torch.float16) == 103 and least_exponent(torch.bfloat16) == 1


# -- attention --------------------------------------------------------------------------------


@dataclass
class WithFP8:
    """A batch whose suffixes and some of whose nodes are fp8, and the numbers that are read."""

    batch: Batch
    fp8: FP8Blocks
    read: Batch


def with_fp8_nodes(batch: Batch, nodes: tuple[int, ...]) -> WithFP8:
    """Move the suffixes and those nodes to FP8 blocks; where they were there is NaN."""
    layout, size = batch.layout, batch.shape.block_size
    is_fp8 = np.isin(np.arange(layout.num_nodes), nodes)
    own = []
    for row, slots in enumerate(batch.slots):
        own.append(slots[int(batch.prefix_length[row]) :])
    for i in nodes:
        blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]]
        own.append((blocks[:, None] * size + np.arange(size)).ravel()[: layout.length[i]])
    slots = torch.from_numpy(np.unique(np.concatenate(own).astype(np.int64))).to(DEVICE)
    fp8 = empty(len(batch.k_cache), batch.shape)
    keys, values = (c.view(-1, *c.shape[2:]) for c in (batch.k_cache, batch.v_cache))
    reference.store_fp8(keys[slots], values[slots], fp8, slots)
    read = [cache.double() for cache in (batch.k_cache, batch.v_cache)]
    found = reference.read_fp8(fp8, slots)
    for cache, numbers, old in zip(read, found, (keys, values), strict=True):
        cache.view(-1, *cache.shape[2:])[slots] = numbers.double()
        old[slots] = torch.nan
    layout = replace(layout, fp8=is_fp8)
    batch = replace(batch, layout=layout)
    q = batch.q.double()
    return WithFP8(batch, fp8, replace(batch, q=q, k_cache=read[0], v_cache=read[1]))


def attend(
    made: WithFP8, tile: Tile | None = SMALL, costs: CostModel | None = None, **options: object
) -> torch.Tensor:
    """Decode attention into a poisoned, guarded output."""
    batch, shape = made.batch, made.batch.shape
    plan = AttentionPlan(shape, len(batch.q) + 3, DEVICE, tile=tile, num_programs=5, costs=costs)
    plan.partial_out.fill_(float("nan"))
    plan.update(batch.layout)
    out, whole = guarded((len(batch.q), shape.num_heads, shape.value_size), shape.dtype)
    decode_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, out=out, fp8=made.fp8, **options,
    )  # fmt: skip
    assert_guard(whole)
    return out


def by_reference(made: WithFP8, **options: object) -> torch.Tensor:
    batch = made.batch
    plan = reference.ReferencePlan(batch.layout, batch.shape.block_size, DEVICE)
    suffix = reference.SuffixPlan(
        plan, batch.shape.block_size, batch.block_tables, batch.prefix_length, batch.position
    )
    return reference.decode_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, suffix, fp8=made.fp8, **options
    )


NODES = [(50, 0, 4), (30, 0, 2), (33, 2, 4), (17, 3, 4)]
SUFFIXES = [1, 25, 40, 60]


def check_tree(nodes: tuple[int, ...], costs: CostModel | None, dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(4, 2, dtype), NODES, SUFFIXES, padding=2, scattered=(2,))
    made = with_fp8_nodes(batch, nodes)
    expected = naive_decode(made.read, scale=0.125)
    out = attend(made, costs=costs, scale=0.125)
    assert_close(out, expected)
    assert (out[-2:] == 0).all()
    assert_close(by_reference(made, scale=0.125), expected)


def test_a_tree() -> None:
    check_tree((3,), ATTENTION_MODES["mixed"], torch.float32)


@slow_in_interpreter
@each_dtype
@each_mode
@pytest.mark.parametrize("nodes", [(), (3,), (0, 1, 2, 3)], ids=["suffixes", "a leaf", "all"])
@pytest.mark.turn(3)
def test_trees(nodes: tuple[int, ...], costs: CostModel | None, dtype: torch.dtype) -> None:
    check_tree(nodes, costs, dtype)


LIMITS = [{"window": 1}, {"window": 60}, {"attention_chunk": 32}, {"window": 45, "softcap": 0.5}]


@slow_in_interpreter
@each_dtype
@each_mode
@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.turn(3)
def test_limits(options: dict, costs: CostModel | None, dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(2, 1, dtype), NODES, SUFFIXES, padding=1, scattered=(2,))
    made = with_fp8_nodes(batch, (1, 3))
    options = options | {"sinks": torch.linspace(-3, 4, 2, device=DEVICE).to(dtype), "scale": 0.125}
    expected = naive_decode(made.read, **options)
    assert_close(attend(made, costs=costs, **options), expected)
    assert_close(by_reference(made, **options), expected)


@slow_in_interpreter
@each_dtype
@each_mode
def test_queries_and_values_of_any_size(costs: CostModel | None, dtype: torch.dtype) -> None:
    """Suffixes are multiplied in float16, whose numbers are few: what is larger has its units."""
    batch = random_batch(make_shape(4, 2, dtype), NODES, SUFFIXES, scattered=(2,))
    generator = torch.Generator().manual_seed(0)
    blocks, size = batch.v_cache.shape[:2]
    powers = torch.randint(-9, 10, (blocks, size, 1, 1), generator=generator).to(DEVICE)
    batch.v_cache.mul_(torch.exp2(powers).to(dtype))
    sizes = torch.tensor([2.0**-12, 2.0, 64.0, 2.0**9], device=DEVICE, dtype=dtype)
    batch.q.mul_(sizes[:, None, None])
    batch.q[2, 1] = 0.0
    made = with_fp8_nodes(batch, (1, 3))
    scale = 2.0**-12  # with which no score is beyond float32's precision
    expected = naive_decode(made.read, scale=scale)
    for found, row in zip(attend(made, costs=costs, scale=scale), expected, strict=True):
        assert_close(found, row, scale=row.abs().max().item())


@slow_in_interpreter
@each_dtype
@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (8, 1), (48, 1)])
def test_groups_in_the_default_tiles(heads: tuple[int, int], dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(*heads, dtype), [(35, 0, 4), (17, 1, 4)], [1, 3, 17, 2])
    made = with_fp8_nodes(batch, (1,))
    out = attend(made, tile=None, costs=ATTENTION_MODES["mixed"], scale=0.125)
    assert_close(out, naive_decode(made.read, scale=0.125))


@slow_in_interpreter
@each_dtype
@each_mode
@pytest.mark.parametrize("sizes", [(80, 80), (128, 128), (256, 256), (192, 128), (24, 40)])
@pytest.mark.turn(3)
def test_head_sizes(sizes: tuple[int, int], costs: CostModel | None, dtype: torch.dtype) -> None:
    shape = make_shape(2, 1, dtype, key_size=sizes[0], value_size=sizes[1])
    made = with_fp8_nodes(random_batch(shape, [(35, 0, 3), (18, 1, 2)], [1, 3, 37]), (1,))
    scale = sizes[0] ** -0.5
    assert_close(attend(made, costs=costs, scale=scale), naive_decode(made.read, scale=scale))


@slow_in_interpreter
@each_mode
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.turn(3)
def test_random_trees(seed: int, costs: CostModel | None) -> None:
    """Ragged ones, in blocks of any size, with any of the nodes fp8."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 11))
    nodes = random_tree(rng, num_rows)
    dtype = (torch.float32, torch.float16)[seed % 2]
    block_size = int(rng.choice([1, 3, 8, 16, 32]))
    shape = make_shape(4, 2, dtype, key_size=16, value_size=16, block_size=block_size)
    batch = random_batch(
        shape, nodes, rng.integers(0, 40, num_rows).tolist(),
        padding=int(rng.integers(0, 4)),
        scattered=tuple(i for i in range(len(nodes)) if rng.random() < 0.3),
        seed=seed,
    )  # fmt: skip
    made = with_fp8_nodes(batch, tuple(i for i in range(len(nodes)) if rng.random() < 0.5))
    expected = naive_decode(made.read, scale=0.3)
    assert_close(attend(made, costs=costs, scale=0.3), expected)
    assert_close(by_reference(made, scale=0.3), expected)


@slow_in_interpreter
@each_dtype
@pytest.mark.parametrize("unshared", [False, True])
def test_split_suffixes(unshared: bool, dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(4, 2, dtype), NODES[:2], [1, 200, 70, 5], padding=1)
    made = with_fp8_nodes(batch, (1,))
    plan = AttentionPlan(
        batch.shape, len(batch.q), DEVICE, costs=Decided(every=1) if unshared else None
    )
    batch = made.batch
    plan.update(batch.layout)
    tensors = (batch.q, batch.k_cache, batch.v_cache, plan)
    shared_attention(*tensors, batch.position, fp8=made.fp8, scale=0.125)
    out = suffix_attention(
        *tensors, batch.block_tables, batch.prefix_length, batch.position, fp8=made.fp8,
        scale=0.125, num_splits=3,
    )  # fmt: skip
    assert_close(out, naive_decode(made.read, scale=0.125))


@slow_in_interpreter
def test_a_fp8_key_of_nan_is_seen_by_its_rows_alone() -> None:
    batch = random_batch(make_shape(4, 2, torch.float32), NODES[:1], SUFFIXES, padding=1)
    made = with_fp8_nodes(batch, ())
    row = int(batch.layout.order[1])
    before = attend(made, scale=0.125)
    slot = int(batch.slots[row][-2])
    size = batch.shape.block_size
    made.fp8.exponents[slot // size, :, 0, slot % size] = NAN
    made.fp8.keys.view(torch.uint8).view(-1, 2, 64)[slot] = 0
    for out in (attend(made, scale=0.125), by_reference(made, scale=0.125)):
        assert out[row].isnan().all()
        others = [other for other in range(len(out)) if other != row]
        assert_close(out[others], before[others].double())


@slow_in_interpreter
@each_dtype
@pytest.mark.parametrize("scattered", [False, True], ids=["", "scattered"])
def test_chunks_of_prompts_over_fp8_nodes(scattered: bool, dtype: torch.dtype) -> None:
    shape, size = make_shape(4, 2, dtype), 16
    nodes, chunks = [(50, 0, 3), (40, 1, 3)], [([0], 9), ([0, 1], 1), ([0, 1], 18)]
    layout, starts = prompt_layout(nodes, chunks, size, scattered)
    layout = replace(layout, fp8=np.array([False, True]))
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).to(DEVICE, dtype)

    blocks = int(layout.block_start[-1]) + 2
    k_cache, v_cache = (random(blocks, size, 2, 64) for _ in range(2))
    slots = [
        torch.from_numpy((layout.blocks[a:b, None] * size + np.arange(size)).ravel()[:length])
        .long().to(DEVICE)
        for a, b, (length, _, _) in zip(layout.block_start, layout.block_start[1:], nodes,
                                        strict=False)
    ]  # fmt: skip
    fp8 = empty(blocks, shape)
    keys, values = (cache.view(-1, 2, 64) for cache in (k_cache, v_cache))
    reference.store_fp8(keys[slots[1]], values[slots[1]], fp8, slots[1])
    found = [part.double() for part in reference.read_fp8(fp8, slots[1])]
    keys[slots[1]] = values[slots[1]] = torch.nan
    q, k, v = random(int(starts[-1]), 4, 64), *(random(int(starts[-1]), 2, 64) for _ in range(2))
    above = [sum(nodes[j][0] for j in path) for path, _ in chunks]
    position = torch.cat([torch.arange(n) + p for p, (_, n) in zip(above, chunks, strict=True)]).to(
        DEVICE, torch.int32
    )
    plan = PrefillPlan(shape, int(starts[-1]) + 5, DEVICE, tile=SMALL, shared_tile=SMALL)
    plan.update(layout, starts)
    out = prefill_attention(q, k, v, k_cache, v_cache, plan, position, fp8=fp8, scale=0.125)
    of_reference = reference.prefill_attention(
        q, k, v, k_cache, v_cache, reference.ReferencePlan(layout, size, DEVICE), starts.tolist(),
        position, fp8=fp8, scale=0.125,
    )  # fmt: skip
    for c, (path, _) in enumerate(chunks):
        context = [[keys[slots[0]].double(), values[slots[0]].double()], found][: len(path)]
        for t in range(starts[c], starts[c + 1]):
            own = [k[starts[c] : t + 1].double(), v[starts[c] : t + 1].double()]
            both = (torch.cat(parts) for parts in zip(*context, own, strict=True))
            expected = naive_row(q[t], *both, int(position[t]), scale=0.125)
            assert_close(out[t], expected)
            assert_close(of_reference[t], expected)
