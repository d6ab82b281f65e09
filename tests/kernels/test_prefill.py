"""Prefill: packed chunks over shared nodes against each token's whole context in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.tiles import AttentionShape, Tile
from tests.kernels.trees import (
    DEVICE,
    assert_close,
    assert_guard,
    each_dtype,
    guarded,
    make_shape,
    naive_row,
    prompt_layout,
)

SMALL = Tile(lines=16, keys=16, num_warps=4, num_stages=2)


def check_prefill(
    shape: AttentionShape,
    nodes: list[tuple[int, int, int]],
    chunks: list[tuple[list[int], int]],
    tile: Tile | None = SMALL,
    sinks: torch.Tensor | None = None,
    room: int = 5,
    scattered: bool = False,
    offset: float = 0.0,
    error: float = 1.0,
    **options: object,
) -> None:
    """nodes, chunks, scattered: as `prompt_layout` takes them. room: for more tokens than there
    are. offset: keys and values are centred there. error: what is allowed, times the tolerance.
    """
    generator = torch.Generator().manual_seed(0)
    size = shape.block_size
    layout, starts = prompt_layout(nodes, chunks, size, scattered)
    num_slots = (int(layout.block_start[-1]) + 2) * size

    def random(*sizes: int, around: float = offset) -> torch.Tensor:
        return (torch.randn(*sizes, generator=generator) + around).to(DEVICE, shape.dtype)

    keys = random(num_slots, shape.num_kv_heads, shape.key_size)
    values = random(num_slots, shape.num_kv_heads, shape.value_size)
    block_slots = layout.blocks[:, None] * size + np.arange(size)
    node_slots = [
        block_slots[layout.block_start[i] : layout.block_start[i + 1]].ravel()[:length]
        for i, (length, _, _) in enumerate(nodes)
    ]
    used = np.concatenate([*node_slots, np.zeros(0, int)])
    unused = np.setdiff1d(np.arange(num_slots), used)
    keys[unused], values[unused] = float("nan"), float("nan")
    q = random(starts[-1], shape.num_heads, shape.key_size, around=0.0)
    k = random(starts[-1], shape.num_kv_heads, shape.key_size)
    v = random(starts[-1], shape.num_kv_heads, shape.value_size)
    prefix = [sum(nodes[j][0] for j in path) for path, _ in chunks]
    position = torch.cat([torch.arange(n) + p for p, (_, n) in zip(prefix, chunks, strict=True)])

    plan = PrefillPlan(shape, int(starts[-1]) + room, DEVICE, tile=tile, shared_tile=tile)
    plan.shared.partial_out.fill_(float("nan"))
    plan.update(layout, starts)
    out, whole = guarded((int(starts[-1]), shape.num_heads, shape.value_size), shape.dtype)
    caches = (c.view(-1, size, shape.num_kv_heads, c.shape[-1]) for c in (keys, values))
    prefill_attention(
        q, k, v, *caches, plan, position.to(DEVICE, torch.int32), sinks=sinks, out=out, **options
    )
    assert_guard(whole)
    for c, (path, length) in enumerate(chunks):
        slots = np.concatenate([np.zeros(0, int), *(node_slots[j] for j in path)])
        for t in range(starts[c], starts[c] + length):
            own = slice(starts[c], t + 1)
            expected = naive_row(
                q[t], torch.cat([keys[slots], k[own]]), torch.cat([values[slots], v[own]]),
                int(position[t]), sinks=sinks, **options,
            )  # fmt: skip
            assert_close(out[t], expected, scale=error)


TREE = [(50, 0, 3), (17, 1, 3)]
CHUNKS = [([0], 9), ([0, 1], 1), ([0, 1], 34), ([], 17)]


@pytest.mark.slow
@each_dtype
@pytest.mark.parametrize("scattered", [False, True], ids=["", "scattered"])
@pytest.mark.turn(4)
def test_chunks_over_nodes(scattered: bool, dtype: torch.dtype) -> None:
    check_prefill(make_shape(4, 2, dtype), TREE, CHUNKS, scattered=scattered, scale=0.125)


@each_dtype
@pytest.mark.parametrize("heads", [(5, 1), (12, 1), (48, 1)])
@pytest.mark.turn(8)
def test_groups(heads: tuple[int, int], dtype: torch.dtype) -> None:
    check_prefill(make_shape(*heads, dtype), TREE[:1], [([0], 9)] * 3, tile=None, scale=0.125)


@each_dtype
@pytest.mark.parametrize("nodes", [[], [(50, 0, 2), (17, 0, 2)]], ids=["alone", "over nodes"])
@pytest.mark.parametrize("with_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize(
    ("heads", "size"), [((4, 2), 64), ((3, 3), 80), ((4, 1), 96), ((6, 1), 128)]
)
@pytest.mark.turn(8)
def test_full_batches_of_equal_chunks(
    heads: tuple[int, int],
    size: int,
    nodes: list[tuple[int, int, int]],
    with_sinks: bool,
    dtype: torch.dtype,
) -> None:
    """On some devices these are a library's."""
    path = list(range(len(nodes)))
    sinks = torch.linspace(-2, 5, heads[0], device=DEVICE).to(dtype) if with_sinks else None
    shape = make_shape(*heads, dtype, key_size=size, value_size=size)
    chunks = [(path, 33)] * 2
    check_prefill(shape, nodes, chunks, tile=None, sinks=sinks, room=0, scale=size**-0.5)


def test_what_is_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Hopper, where there is cuDNN: full batches of equal chunks, heads of one size."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)

    def suits(
        lengths: list[int], sizes: tuple[int, int] = (96, 96), dtype: torch.dtype = torch.float16
    ) -> bool:
        shape = make_shape(4, 2, dtype, key_size=sizes[0], value_size=sizes[1])
        plan = PrefillPlan(shape, 80, torch.device("cpu"))
        plan.update(*prompt_layout([], [([], length) for length in lengths], shape.block_size))
        plan.shared.device = torch.device("cuda")
        return plan._suits_library()

    assert suits([40, 40]) and suits([80]) and suits([40, 40], dtype=torch.bfloat16)
    assert not suits([40, 39]) and not suits([50, 30])
    assert not suits([40, 40], dtype=torch.float32)
    for sizes in ((192, 128), (64, 128), (128, 64), (100, 100), (256, 256)):
        assert not suits([40, 40], sizes)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert not suits([40, 40])


@each_dtype
def test_no_nodes(dtype: torch.dtype) -> None:
    check_prefill(make_shape(3, 3, dtype), [], [([], 1), ([], 40)], scale=0.125)


@each_dtype
@pytest.mark.parametrize(
    "options",
    [{"window": 1}, {"window": 25}, {"attention_chunk": 32}, {"softcap": 2.0}, {"window": 60}],
    ids=str,
)
@pytest.mark.turn(5)
@pytest.mark.slow
def test_limits(options: dict, dtype: torch.dtype) -> None:
    sinks = torch.tensor([-2.0, 0.0, 1.0, 5.0], device=DEVICE).to(dtype)
    check_prefill(make_shape(4, 2, dtype), TREE, CHUNKS, scale=0.125, sinks=sinks, **options)


@each_dtype
@pytest.mark.parametrize(
    "sizes", [(80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (24, 40)]
)
def test_head_sizes(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    shape = make_shape(2, 1, dtype, key_size=sizes[0], value_size=sizes[1])
    check_prefill(shape, [(50, 0, 1)], CHUNKS[:1], tile=None, scale=sizes[0] ** -0.5)


@each_dtype
@pytest.mark.parametrize("room", [0, 5], ids=["full", ""])
@pytest.mark.turn(2)
def test_values_far_from_zero(room: int, dtype: torch.dtype) -> None:
    nodes, chunks = [(50, 0, 2)], [([0], 20)] * 2
    shape = make_shape(4, 2, dtype)
    check_prefill(shape, nodes, chunks, room=room, offset=30.0, error=30, scale=0.125)


@each_dtype
@pytest.mark.parametrize("room", [0, 5], ids=["full", ""])
def test_scores_far_from_zero(room: int, dtype: torch.dtype) -> None:
    nodes, chunks = [(50, 0, 2)], [([0], 20)] * 2
    error = 40 if dtype == torch.float32 else 4  # a score of 1,000 is rounded to 1e-4
    check_prefill(make_shape(2, 2, dtype), nodes, chunks, room=room, error=error, scale=40.0)
