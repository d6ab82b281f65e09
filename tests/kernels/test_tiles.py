"""What the kernels cannot serve is named; all else they take."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sharegen.kernels.tiles import (
    AttentionShape,
    Tile,
    beside_tile,
    causal_tile,
    many_tile,
    programs_with_room,
    shared_memory,
    shared_tile,
    suffix_tile,
    unsupported,
)

SHAPE = AttentionShape(128, 1, 256, 256, 16, torch.bfloat16)  # group and heads as large as can be


@pytest.mark.parametrize(
    ("changes", "scale", "reason"),
    [
        ({"dtype": torch.float64}, 1.0, "no kernel for torch.float64"),
        ({"dtype": torch.float8_e4m3fn}, 1.0, "no kernel for torch.float8_e4m3fn"),
        ({"num_heads": 129}, 1.0, "129 query heads for each KV head (at most 128)"),
        ({"num_kv_heads": 3}, 1.0, "128 query heads do not divide among 3 KV heads"),
        ({"num_heads": 2, "num_kv_heads": 4}, 1.0, "2 query heads do not divide among 4 KV heads"),
        ({"key_size": 264}, 1.0, "a head size of 264 (at most 256)"),
        ({"value_size": 257}, 1.0, "a head size of 257 (at most 256)"),
        ({}, 0.0, "a scale of 0.0 (it must be above 0)"),
        ({}, -0.125, "a scale of -0.125 (it must be above 0)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_named(changes: dict, scale: float, reason: str) -> None:
    assert unsupported(replace(SHAPE, **changes), scale) == reason


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_kv_heads": 128}, {"num_heads": 6, "num_kv_heads": 2, "key_size": 24}],
    ids=str,
)
def test_what_is_supported(changes: dict, dtype: torch.dtype) -> None:
    shape = replace(SHAPE, dtype=dtype, **changes)
    assert unsupported(shape) is None and unsupported(shape, 0.01) is None


KIB = 1 << 10
LIMITS = {"sm_75": 64 * KIB, "sm_86": 99 * KIB, "sm_80": 163 * KIB, "sm_90": 227 * KIB}
SIZES = [(64, 64), (80, 80), (128, 128), (192, 128), (256, 256)]


def tiles_of(shape: AttentionShape, limit: int) -> list[Tile]:
    return [
        shared_tile(shape, limit), beside_tile(shape, limit), suffix_tile(shape, limit),
        many_tile(shape, limit, long=False), many_tile(shape, limit, long=True),
        causal_tile(shape, 512, limit), causal_tile(shape, 8192, limit),
    ]  # fmt: skip


def shapes() -> list[AttentionShape]:
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    return [
        AttentionShape(group * 2, 2, *sizes, 16, dtype)
        for dtype in dtypes for sizes in SIZES for group in (1, 4, 7, 16, 48, 128)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_tiles_fit_the_shared_memory_of_the_gpu(limit: int) -> None:
    """Or the shape is not supported there, which only groups and heads of the largest are."""
    for shape in shapes():
        reason = unsupported(shape, limit=limit)
        fits = all(shared_memory(shape, tile) <= limit for tile in tiles_of(shape, limit))
        assert fits == (reason is None)
        lines = [tile.lines for tile in tiles_of(shape, limit)[:3]]
        assert min(lines) >= shape.group and all(t.keys >= 16 for t in tiles_of(shape, limit))
        if reason is not None:
            assert limit < 163 * KIB and shape.group * shape.key_size > 48 * 64
            assert f"bytes of shared memory (this GPU has {limit:,} for a program)" in reason


def test_head_size_256_on_a_card_of_99_kib() -> None:
    for dtype in (torch.bfloat16, torch.float32):
        shape = AttentionShape(16, 8, 256, 256, 16, dtype)
        assert unsupported(shape, limit=LIMITS["sm_86"]) is None
        assert max(shared_memory(shape, t) for t in tiles_of(shape, LIMITS["sm_90"])) > 99 * KIB
    half = AttentionShape(16, 8, 256, 256, 16, torch.bfloat16)
    assert shared_tile(half, LIMITS["sm_86"]) == Tile(64, 32, 4, 2)


def test_the_tiles_of_hopper_are_those_that_were_measured() -> None:
    """None is made smaller there."""
    for shape in shapes():
        assert tiles_of(shape, LIMITS["sm_90"]) == tiles_of(shape, 1 << 30)
    llama = AttentionShape(32, 8, 128, 128, 16, torch.bfloat16)
    assert tiles_of(llama, LIMITS["sm_90"]) == [
        Tile(64, 64, 4, 3), Tile(64, 32, 4, 3, 168), Tile(8, 16, 1, 3),
        Tile(128, 64, 8, 3, 184), Tile(128, 64, 8, 3, 184),
        Tile(128, 32, 8, 3), Tile(128, 64, 8, 3),
    ]  # fmt: skip
    each_its_own = replace(llama, num_kv_heads=32)
    assert many_tile(each_its_own, LIMITS["sm_90"], long=False) == Tile(128, 32, 8, 3, 144)
    for how in ({"long": True}, {"long": False, "fp8": True}):
        assert many_tile(each_its_own, LIMITS["sm_90"], **how) == Tile(128, 64, 8, 3, 184)
    for limit in (LIMITS["sm_80"], LIMITS["sm_86"]):
        assert many_tile(llama, limit, long=True) == shared_tile(llama, limit)
        assert many_tile(llama, limit, long=False) == beside_tile(llama, limit)
    wide = AttentionShape(16, 4, 256, 256, 16, torch.bfloat16)
    assert tiles_of(wide, LIMITS["sm_90"])[:2] == [Tile(128, 32, 8, 3), Tile(64, 32, 4, 3)]


def test_programs_that_a_gpu_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor has a KiB more for them than one may take, and each takes one unasked."""
    properties = SimpleNamespace(
        multi_processor_count=132, shared_memory_per_multiprocessor=228 * KIB
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    wide = AttentionShape(16, 4, 256, 256, 16, torch.bfloat16)
    llama = replace(wide, key_size=128, value_size=128)
    for shape, count in ((llama, 3), (wide, 1)):
        tile = beside_tile(shape, LIMITS["sm_90"])
        assert programs_with_room(torch.device("cuda"), shape, tile) == count * 132
    for tile, count in ((Tile(64, 64, 4, 3), 2), (Tile(128, 64, 8, 3), 1)):  # to the last byte
        assert programs_with_room(torch.device("cuda"), llama, tile) == count * 132
    large = Tile(128, 64, 8, 3)
    assert programs_with_room(torch.device("cuda"), wide, large) == 132  # at least one a processor


def test_fp8_suffixes_are_kept_to_fewer_registers_where_each_row_has_kv_heads() -> None:
    limit = LIMITS["sm_90"]
    for heads, kv_heads, registers in ((32, 32, 112), (32, 8, None)):
        shape = AttentionShape(heads, kv_heads, 128, 128, 16, torch.bfloat16)
        wide = suffix_tile(shape, limit, beside=True)
        assert wide.max_registers is None
        assert suffix_tile(shape, limit, fp8=True) == replace(wide, max_registers=registers)
        beside = suffix_tile(shape, limit, fp8=True, beside=True)
        assert beside == replace(wide, max_registers=112)
