"""What ranks say to each other, over gloo; NCCL and shared memory need GPUs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch

from sharegen.engine.model.tensor_parallel import ranks as module
from sharegen.engine.model.tensor_parallel.ranks import Ranks, alone, connect, share
from sharegen.errors import ModelError
from tests.engine.rank_processes import on_ranks


def talk(ranks: Ranks) -> dict[str, object]:
    module._PIECE = 1000  # so that sums are of several
    generator = torch.Generator().manual_seed(ranks.rank)
    x = torch.randn(37, 129, generator=generator)
    first, count = share(11, ranks.rank, ranks.size)
    part = torch.arange(22.0).view(2, 11)[:, first : first + count]

    @torch.compile(backend="aot_eager", fullgraph=True, dynamic=True)
    def compiled(x: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ranks.all_reduce(x * 1), ranks.gather_last(part + 0, 11)

    with alone():
        own = ranks.all_reduce(x.clone()), ranks.gather_last(part, 11).shape
    return {
        "x": x,
        "sum": ranks.all_reduce(x.clone()),
        "strided": ranks.all_reduce(x.clone().t()),
        "few": ranks.all_reduce(x[30:].clone()),
        "gathered": ranks.gather_last(part, 11),
        "compiled": compiled(x, part) if ranks.size == 2 else None,
        "own": own,
        "broadcast": ranks.broadcast(torch.tensor([ranks.rank + 5])),
        "least": ranks.least(7 - ranks.rank),
    }


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.turn(2)
def test_all_ranks_have_the_same_bits(size: int) -> None:
    said = on_ranks(size, talk)
    total = sum(rank["x"].double() for rank in said)
    for rank in said:
        assert torch.equal(rank["sum"], said[0]["sum"])
        assert (rank["sum"] - total).abs().max() <= 1e-5
        in_order = said[0]["x"]
        for other in said[1:]:
            in_order = in_order + other["x"]
        assert torch.equal(rank["sum"], in_order)
        assert torch.equal(rank["strided"], in_order.t())
        assert torch.equal(rank["few"], in_order[30:])
        assert torch.equal(rank["gathered"], torch.arange(22.0).view(2, 11))
        if size == 2:
            assert torch.equal(rank["compiled"][0], rank["sum"])
            assert torch.equal(rank["compiled"][1], rank["gathered"])
        assert torch.equal(rank["own"][0], rank["x"]) and rank["own"][1] == (2, 11)
        assert rank["broadcast"].item() == 5 and rank["least"] == 8 - size


def test_on_the_meta_device_there_are_shapes() -> None:
    ranks = Ranks(1, 2, torch.device("meta"))
    x = torch.empty(3, 4, device="meta")
    assert ranks.all_reduce(x).shape == (3, 4)
    assert ranks.gather_last(x, 7).shape == (3, 7)


@pytest.mark.slow
def test_a_rank_that_meets_nobody_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="rank 1 of 2 cannot reach the others"):
        address = f"file://{tmp_path}/meeting"
        connect(1, 2, address, torch.device("cpu"), timedelta(seconds=1))
