"""A linear layer whose sums are not split: what it computes, and that no row minds the others."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels.roles import is_hopper
from sharegen.kernels.unsplit_product import Tile, tiles_for, unsplit_product
from tests.kernels.trees import DEVICE, each_dtype

TILES = [Tile(16, 64, 64, 2, True), Tile(64, 16, 32, 2, False), Tile(32, 32, 64, 1, True)]

on_hopper = pytest.mark.skipif(not is_hopper(DEVICE), reason="needs a Hopper card")


def drawn(
    rows: int, size: int, width: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(rows, size, generator=generator, device=DEVICE)
    weight = torch.randn(width, size, generator=generator, device=DEVICE) / size**0.5
    bias = torch.randn(width, generator=generator, device=DEVICE)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@each_dtype
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product(tile: Tile, dtype: torch.dtype, has_bias: bool) -> None:
    x, weight, bias = drawn(37, 200, 136, dtype)
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)
    found = unsplit_product(x, weight, bias if has_bias else None, tile)
    tolerance = 0.01 if dtype.itemsize < 4 else 0.0
    torch.testing.assert_close(found, expected.to(dtype), rtol=tolerance, atol=1e-4)


@each_dtype
def test_few_numbers_are_summed_without_any_error(dtype: torch.dtype) -> None:
    x = torch.arange(5 * 48, device=DEVICE).view(5, 48).remainder(7).to(dtype)
    weight = torch.arange(24 * 48, device=DEVICE).view(24, 48).remainder(5).to(dtype)
    expected = (x.double() @ weight.double().T).to(dtype)
    assert all(torch.equal(unsplit_product(x, weight, None, tile), expected) for tile in TILES)


@each_dtype
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_row_is_what_it_is_alone_and_in_any_place(tile: Tile, dtype: torch.dtype) -> None:
    x, weight, bias = drawn(70, 264, 72, dtype)
    whole = unsplit_product(x, weight, bias, tile)
    for count in (1, 16, 33):
        assert torch.equal(unsplit_product(x[:count], weight, bias, tile), whole[:count])
    order = torch.arange(69, -1, -1, device=DEVICE)
    assert torch.equal(unsplit_product(x[order], weight, bias, tile), whole[order])


def test_rows_that_do_not_lie_together_and_numbers_that_are_none() -> None:
    x, weight, _ = drawn(40, 64, 32, torch.float32)
    x[4], x[6, 3] = float("inf"), float("nan")
    expected = unsplit_product(x[::2].contiguous(), weight, None, TILES[0])
    found = unsplit_product(x[::2], weight, None, TILES[0])
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert found[3].isnan().all() and found[:2].isfinite().all()


@pytest.mark.parametrize("rows", [1, 8, 64, 65, 128, 320])
def test_the_tiles_fit_a_processor(rows: int) -> None:
    tiles = tiles_for(rows, 4096, torch.bfloat16)
    for tile in tiles:
        stage = 2 * (tile.rows + tile.columns) * tile.depth
        assert stage * tile.num_stages < 225 << 10
    assert tiles
    assert not tiles_for(rows, 4096, torch.float32)  # the library's own sums are of another kind
    assert not tiles_for(rows, 100, torch.bfloat16)  # 8 bytes too few


@on_hopper
@pytest.mark.parametrize("rows", [1, 8, 33, 64, 128, 256])
@pytest.mark.parametrize(("size", "width"), [(4096, 4096), (14_336, 4096), (8192, 2048)])
def test_its_bits_are_the_library_s_of_many_rows(rows: int, size: int, width: int) -> None:
    x, weight, _ = drawn(1024, size, width, torch.bfloat16)
    expected = torch.nn.functional.linear(x, weight)[:rows]
    for tile in tiles_for(rows, size, torch.bfloat16):
        assert torch.equal(unsplit_product(x[:rows], weight, None, tile), expected)
