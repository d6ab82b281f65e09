"""Products of FP8 numbers against the same numbers multiplied in float64."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sharegen.engine.model.fp8.products import (
    E4M3,
    EMULATE,
    FP8Linear,
    check_device,
    multiply,
    multiply_groups,
    quantise_rows,
)
from sharegen.errors import ModelError, SharegenError, UsageError

LARGEST = 448.0
HALF_STEP = 2.0**-4  # of e4m3's numbers, relative: three bits of mantissa


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_is_its_scale_times_numbers_of_e4m3(dtype: torch.dtype) -> None:
    x = (normal(63, 111) * torch.logspace(-3, 3, 63)[:, None]).to(dtype)
    values, scales = quantise_rows(x)
    assert (values.dtype, scales.dtype) == (E4M3, torch.float32)
    assert scales.shape == (63, 1)
    assert (values.float().abs().amax(-1) == LARGEST).all()
    smallest = scales * 2.0**-9  # e4m3's least number
    error = (values.float() * scales - x.float()).abs()
    assert (error <= torch.maximum(HALF_STEP * x.float().abs(), smallest / 2) * (1 + 1e-5)).all()


def test_no_finite_row_is_out_of_range() -> None:
    """Far beyond e4m3's 448, far below its least number, and zeros."""
    for size in (65_504.0, 3e38, 1e-25):
        x = normal(5, 32).clamp(-1, 1) * size
        values, scales = quantise_rows(x)
        near = values.float().double() * scales.double()
        assert ((near - x.double()).abs().amax(-1) <= HALF_STEP * x.abs().amax(-1)).all()
    values, scales = quantise_rows(torch.zeros(2, 32))
    assert (values.float() == 0).all() and (scales > 0).all()


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    x = normal(3, 16)
    x[0, 3], x[2, 5] = torch.nan, torch.inf
    weight, scale = quantise_rows(normal(32, 16, seed=1))
    out = multiply(x, weight, scale, None)
    assert out[[0, 2]].isnan().all() and out[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_product_equals_that_of_the_same_numbers_in_float64(dtype: torch.dtype) -> None:
    x, bias = normal(2, 7, 160).to(dtype), normal(48, seed=2).to(dtype)
    x[1, 3] = 0
    weight, scale = quantise_rows(normal(48, 160, seed=1))
    values, scales = quantise_rows(x)
    wide = (values.double() * scales.double()) @ (weight.double() * scale.double()).t() + bias
    layer = FP8Linear(weight, scale, bias)
    out = layer(x)
    assert (out.shape, out.dtype) == ((2, 7, 48), dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2.0**-8
    assert (out - wide).abs().max() <= tolerance * wide.abs().max()
    assert torch.equal(out[1, 3], bias)  # of a row of zeros
    assert torch.equal(layer(x), out)
    assert torch.equal(layer(x[1]), out[1])  # whatever the other rows are


def test_groups_are_products_with_a_weight_each() -> None:
    x = normal(14, 32)
    weight, scale = quantise_rows(normal(5, 48, 32, seed=1))
    ends = torch.tensor([0, 6, 6, 13, 14], dtype=torch.int32)  # the first and third are empty
    out = multiply_groups(x, weight, scale, ends)
    for group, rows in ((1, slice(0, 6)), (3, slice(6, 13)), (4, slice(13, 14))):
        wanted = multiply(x[rows], weight[group], scale[group], None)
        assert (out[rows] - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_gpu_is_given_what_its_products_take() -> None:
    """By torch's own description of them, which checks types, sizes and strides."""
    with FakeTensorMode():
        x = torch.empty(2, 7, 64, device="cuda", dtype=torch.float16)
        weight = torch.empty(48, 64, device="cuda", dtype=E4M3)
        scale, bias = torch.empty(48, 1, device="cuda"), torch.empty(48, device="cuda")
        out = multiply(x, weight, scale, bias)
        assert (out.shape, out.dtype) == ((2, 7, 48), torch.float16)
        weights = torch.empty(4, 48, 64, device="cuda", dtype=E4M3)
        scales = torch.empty(4, 48, 1, device="cuda")
        ends = torch.empty(4, device="cuda", dtype=torch.int32)
        rows = torch.empty(7, 64, device="cuda", dtype=torch.bfloat16)
        assert multiply_groups(rows, weights, scales, ends).shape == (7, 48)


def told(device: str, experts: bool = False) -> SharegenError:
    with pytest.raises((UsageError, ModelError)) as raised:
        check_device(torch.device(device), experts)
    assert "\n" not in str(raised.value)
    return raised.value


def test_a_device_without_fp8_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EMULATE, raising=False)
    assert "and the device is cpu: leave out --quantization fp8" in str(told("cpu"))
    assert told("cpu").exit_code == 2
    monkeypatch.setenv(EMULATE, "1")
    check_device(torch.device("cpu"), experts=True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A card")
    for capability, is_refused, are_experts in (
        ((8, 0), True, True), ((8, 9), False, True), ((9, 0), False, False), ((12, 0), False, True),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        version = ".".join(map(str, capability))
        if is_refused:
            assert f"and A card has compute capability {version}" in str(told("cuda"))
        else:
            check_device(torch.device("cuda"))
        if are_experts:
            assert f"A card has compute capability {version}" in str(told("cuda", experts=True))
        else:
            check_device(torch.device("cuda"), experts=True)
