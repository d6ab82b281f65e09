"""What the kernels cannot serve is named; all else they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sharegen.kernels.tiles import AttentionShape, unsupported

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
