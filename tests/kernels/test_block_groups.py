"""Products of groups in FP8 by blocks: experts with no row, one row and many."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.fp8.blocks import quantise_groups, widened, widened_groups
from sharegen.kernels.block_groups import BLOCK, Tile, block_groups, tile_for
from tests.kernels.trees import DEVICE

E4M3 = torch.float8_e4m3fn
TILES = [Tile(16, 2, True), Tile(64, 2, True), Tile(64, 2, False)]
if DEVICE.type == "cuda":
    TILES.append(Tile(128, 4, False, 8))
COUNTS = [(0, 1, 0, 40, 17, 0), (0, 0, 5), (1,), (64, 63, 65), (0, 0)]


def drawn(
    counts: tuple[int, ...], columns: int = 256, size: int = 256
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (x [19, K], which [T], a weight in e4m3, its scales)."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    draw = {"generator": generator, "device": DEVICE}
    x = torch.randn(19, size, **draw) * torch.rand(19, 1, **draw) * 9
    which = torch.randint(0, 19, (sum(counts),), **draw)
    shape = (len(counts), columns, size)
    weight = torch.randn(shape, **draw).mul(100).clamp(-448, 448).to(E4M3)
    blocks = (len(counts), columns // BLOCK, size // BLOCK)
    return x, which, weight, torch.rand(blocks, **draw).mul(6).sub(9).exp2()


def meant(
    x: torch.Tensor, counts: tuple[int, ...], weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The product of the same numbers in float32."""
    rows = widened_groups(*quantise_groups(x)).split(counts)
    wide = [widened(own, by) for own, by in zip(weight, scales, strict=True)]
    return torch.cat([part @ own.t() for part, own in zip(rows, wide, strict=True)])


@pytest.mark.turn(3)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_each_group_is_multiplied_by_its_weight(tile: Tile, counts: tuple[int, ...]) -> None:
    x, which, weight, scales = drawn(counts)
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    expected = meant(x[which], counts, weight, scales)
    scale = float(expected.std()) if len(expected) else 0.0
    for rows, index in ((x, which), (x[which], None)):
        found = block_groups(*quantise_groups(rows), index, weight, scales, ends, tile).float()
        assert found.shape == expected.shape and found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01 * scale)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_row_is_what_it_is_in_a_group_of_any_size(tile: Tile) -> None:
    counts = (33, 7)
    x, which, weight, scales = drawn(counts)
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    rows, own = quantise_groups(x)
    whole = block_groups(rows, own, which, weight, scales, ends, tile)
    fewer = torch.tensor([1, 3], device=DEVICE).int()
    chosen = torch.tensor([20, 33, 39], device=DEVICE)
    found = block_groups(rows, own, which[chosen], weight, scales, fewer, tile)
    assert torch.equal(found, whole[chosen])


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    counts = (3, 4)
    x, _, weight, scales = drawn(counts)
    x = x[:7].clone()
    x[4, 5] = torch.nan
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    numbers, own = quantise_groups(x)
    found = block_groups(numbers, own, None, weight, scales, ends, TILES[0])
    assert found.isfinite().all(1).tolist() == [True] * 4 + [False] + [True] * 2


@pytest.mark.parametrize("rows", [8, 256, 2048, 8192, 65_536])
def test_tiles_fit_a_processor(rows: int) -> None:
    tile = tile_for(rows, 128)
    assert (tile.rows + BLOCK) * BLOCK * tile.num_stages < 225 << 10
    assert tile.rows >= 64 or tile.weight_first  # its lines are 64 at least
