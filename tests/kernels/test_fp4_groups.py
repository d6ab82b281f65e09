"""Products of groups in MXFP4: every number there is, experts with no row, one row and many."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels.fp4_groups import Tile, fp4_groups, tile_for
from sharegen.kernels.fp4_words import GROUP, LARGEST_SCALE, STAGE, pack, widen
from tests.kernels.trees import DEVICE

NUMBERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # of e2m1, by their bits; then the negative ones
TILES = [Tile(16, 16, 4, 2), Tile(64, 128, 4, 3)]
COUNTS = [(0, 1, 0, 40, 17, 0), (0, 0, 5), (1,), (64, 63, 65), (0, 0)]
ON_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter has no bfloat16


def stored(
    groups: int, columns: int = 48, size: int = 160, least: int = 100
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks [G, N, K / 2] and scales [G, N, K / 32], as a checkpoint has them."""
    draw = {"generator": torch.Generator(DEVICE).manual_seed(1), "device": DEVICE}
    blocks = torch.randint(0, 256, (groups, columns, size // 2), dtype=torch.uint8, **draw)
    sides = (groups, columns, size // GROUP)
    return blocks, torch.randint(least, LARGEST_SCALE + 1, sides, dtype=torch.uint8, **draw)


def meant(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The numbers of blocks and scales, by a table, in float32 [G, N, K]."""
    table = torch.tensor(NUMBERS + [-number for number in NUMBERS], device=DEVICE)
    numbers = table[torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2).long()]
    powers = torch.exp2(scales.float() - 127)
    return numbers * powers.repeat_interleave(GROUP, dim=-1)


def drawn(counts: tuple[int, ...], size: int = 160) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (x [19, K], which [T])."""
    draw = {"generator": torch.Generator(DEVICE).manual_seed(0), "device": DEVICE}
    x = (torch.randn(19, size, **draw) * torch.rand(19, 1, **draw)).to(DTYPE)
    return x, torch.randint(0, 19, (sum(counts),), **draw)


@pytest.mark.parametrize("size", [32, 128, 160, 352])
def test_packed_weights_are_the_numbers_of_the_checkpoint(size: int) -> None:
    blocks, scales = stored(2, 5, size, least=0)
    words, fours = pack(blocks, scales)
    stages = -(-size // STAGE)
    assert words.dtype == torch.int16 and words.shape == (2, 5, stages * STAGE // 4)
    assert fours.dtype == torch.int32 and fours.shape == (2, stages, 5)
    assert torch.equal(widen(words, fours, size, torch.float32), meant(blocks, scales))
    alone = widen(words[1], fours[1], size, torch.bfloat16)
    assert torch.equal(alone.float(), meant(blocks, scales)[1])  # nothing is rounded


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("tile", [None, *TILES], ids=str)
def test_each_group_is_multiplied_by_its_weight(tile: Tile | None, counts: tuple[int, ...]) -> None:
    x, which = drawn(counts)
    blocks, scales = stored(len(counts))
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    parts = x[which].float().split(counts)
    weights = meant(blocks, scales)
    expected = torch.cat([part @ own.t() for part, own in zip(parts, weights, strict=True)])
    for rows, index in ((x, which), (x[which], None)):
        found = fp4_groups(rows, index, *pack(blocks, scales), ends, tile)
        assert found.dtype == DTYPE
        rtol, atol = (0.01, 0.05) if ON_GPU else (1e-5, 1e-5)
        torch.testing.assert_close(found.float(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_row_is_what_it_is_in_a_group_of_any_size(tile: Tile) -> None:
    counts = (33, 7)
    x, which = drawn(counts)
    weight = pack(*stored(2))
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    whole = fp4_groups(x, which, *weight, ends, tile)
    fewer = torch.tensor([1, 3], device=DEVICE).int()
    chosen = torch.tensor([20, 33, 39], device=DEVICE)
    assert torch.equal(fp4_groups(x, which[chosen], *weight, fewer, tile), whole[chosen])


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_tiles_give_the_same_bits() -> None:
    counts = (70, 1, 0, 57)
    x, which = drawn(counts, 2880)
    weight = pack(*stored(len(counts), 640, 2880))
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).int()
    found = [fp4_groups(x, which, *weight, ends, tile_for(rows, 4)) for rows in (8, 100, 300, 4000)]
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("place", [0, 159])
def test_a_row_that_is_infinite_spoils_no_other(place: int) -> None:
    x, _ = drawn((1,))
    x = x[:7].clone()
    x[4, place] = torch.inf
    ends = torch.tensor([3, 7], device=DEVICE).int()
    found = fp4_groups(x, None, *pack(*stored(2)), ends, TILES[0])
    assert found.isfinite().all(1).tolist() == [True] * 4 + [False] + [True] * 2
