"""Tensors that are read last: the numbers are those of torch, and what is cut away stays unread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import build_on_meta, load_weights
from sharegen.engine.model.starting.moving import Pieces
from sharegen.engine.model.stored import unread as module
from sharegen.engine.model.stored.unread import Stored, Unread, of_blocks
from sharegen.engine.model.tensor_parallel.load_shard import load_shard, plan_shards
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.shard import read_own_shards
from tests.engine.model.stored.packers import store
from tests.engine.model.stored.test_forms import FORMS
from tests.engine.tiny_models import make_tiny

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def tensors(tmp_path: Path) -> Tensors:
    made = {name: torch.randn(6, 10) for name in "abcd"}
    made |= {"one": torch.tensor(3.5), "row": torch.randn(7).bfloat16()}
    save_file(made, tmp_path / "model.safetensors")
    return made


@pytest.fixture
def unread(tensors: Tensors, tmp_path: Path) -> Tensors:
    stored = Stored.all_of(str(tmp_path / "model.safetensors"))
    return {name: Unread(source) for name, source in stored.items()}


def experts(t: Tensors) -> torch.Tensor:
    """As a checkpoint's single experts become one tensor: [2, 12, 10]."""
    gate, up = torch.stack([t["a"], t["b"]]), torch.stack([t["c"], t["d"]])
    return torch.cat([gate, up], dim=1)


NOTED: dict[str, Callable[[Tensors], torch.Tensor]] = {
    "itself": lambda t: t["a"],
    "of no dimension": lambda t: t["one"],
    "of another dtype": lambda t: t["row"].to(torch.float32),
    "rounded on the way": lambda t: t["a"].bfloat16().float()[2:],
    "experts": experts,
    "a part of experts": lambda t: torch.cat([experts(t)[:, 3:5], experts(t)[:, 9:11]], 1),
    "over a seam": lambda t: experts(t).narrow(1, 4, 5)[1:, :, -3:],
    "stacked inside": lambda t: torch.stack([t["a"], t["b"]], dim=-1)[2:4, 5:, 1:],
    "transposed": lambda t: experts(t).transpose(1, -1)[:, 2:8, 5:7].contiguous(),
    "split": lambda t: torch.cat([*t["a"].split([1, 2, 3])[1:], *t["b"].split(4)[::-1]]),
    "split by columns": lambda t: experts(t).split([3, 7], -1)[1],
    "nothing": lambda t: t["a"][3:3],
}


@pytest.mark.parametrize("way", NOTED)
def test_the_numbers_are_those_of_torch(way: str, tensors: Tensors, unread: Tensors) -> None:
    left = NOTED[way](unread)
    assert isinstance(left, Unread)
    wanted = NOTED[way](tensors)
    assert left.shape == wanted.shape and left.dtype == wanted.dtype
    found = left.read()
    assert type(found) is torch.Tensor and found.is_contiguous()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("way", NOTED)
def test_in_pieces_they_are_the_same(
    way: str, tensors: Tensors, unread: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on their way to a GPU, out of a file that is mapped."""
    pieces = Pieces(CPU, 48)
    monkeypatch.setattr(module, "goes_in_pieces", lambda tensor, device: True)
    monkeypatch.setattr(module, "pieces_to", lambda device: pieces)
    assert torch.equal(NOTED[way](unread).read(), NOTED[way](tensors))


BLOCKS: dict[str, tuple[Callable[[Tensors], torch.Tensor], bool]] = {
    "itself": (lambda t: t["a"], True),
    "experts": (experts, True),
    "an expert": (lambda t: experts(t)[1:], True),
    "whole blocks": (lambda t: experts(t).split([8, 4], 1)[0][..., 4:], True),
    "the last ones": (lambda t: t["a"][4:], True),
    "transposed": (lambda t: experts(t).transpose(1, 2)[:, 4:8], True),
    "a cut block": (lambda t: t["a"][:3], False),
    "a block that begins elsewhere": (lambda t: t["a"][:, 3:6], False),
    "an end within": (lambda t: torch.cat([t["c"][:6], t["d"]]), False),
    "an expert among its columns": (lambda t: experts(t).transpose(0, 1), False),
    "stacked inside": (lambda t: torch.stack([t["a"], t["b"]], dim=-1), False),
}


@pytest.mark.parametrize("way", BLOCKS)
def test_what_a_block_has_goes_where_its_numbers_go(way: str, tmp_path: Path) -> None:
    """Blocks of 2 x 2: the tensors are [6, 10], and one more row where they are to be cut."""
    of_each = {name: torch.randn(4 if name == "d" else 3, 5) for name in "abcd"}
    spread = {n: t.repeat_interleave(2, 0).repeat_interleave(2, 1) for n, t in of_each.items()}
    move, is_whole = BLOCKS[way]
    if is_whole:
        spread["d"], of_each["d"] = spread["d"][:6], of_each["d"][:3]
    else:
        spread["c"] = spread["c"][:5]
    save_file({n: t.contiguous() for n, t in spread.items()}, tmp_path / "spread.safetensors")
    save_file({n: t.contiguous() for n, t in of_each.items()}, tmp_path / "blocks.safetensors")
    blocks = Stored.all_of(str(tmp_path / "blocks.safetensors"))
    numbers = Stored.all_of(str(tmp_path / "spread.safetensors"))
    if not is_whole and way in ("an expert among its columns", "stacked inside"):
        numbers["c"], numbers["d"] = numbers["a"], numbers["b"]
    moved = move({name: Unread(source) for name, source in numbers.items()})
    assert isinstance(moved, Unread)
    found = of_blocks(moved.source, 2, lambda leaf: blocks[leaf.name])
    assert (found is not None) == is_whole
    if is_whole:
        expected = moved.read()[..., ::2, ::2]
        assert torch.equal(Unread(found).read(), expected)


def test_what_does_more_than_move_numbers_reads_them(tensors: Tensors, unread: Tensors) -> None:
    for way in (lambda t: t["a"] * 2, lambda t: t["a"][::2], lambda t: t["a"].reshape(-1).sum(),
                lambda t: torch.cat([t["a"], torch.ones(1, 10)])):  # fmt: skip
        found = way(unread)
        assert type(found) is torch.Tensor and torch.equal(found, way(tensors))
    with pytest.raises(AssertionError, match="would write"):
        unread["a"].zero_()


def test_what_does_not_fit_together_is_an_error(unread: Tensors) -> None:
    short = unread["b"][:4]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        torch.stack([unread["a"], short])
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([unread["a"], short], dim=1)


def test_what_is_cut_away_is_not_read(unread: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    fill = Stored.fill

    def watch(self: Stored, out: torch.Tensor, start: list[int]) -> None:
        read.append(out.numel())
        fill(self, out, start)

    monkeypatch.setattr(Stored, "fill", watch)
    part = experts(unread)[:, 1:3]
    assert isinstance(part, Unread) and read == []
    part.read()
    assert read == [20, 20]  # two rows of each expert's gate


# Single experts, buffers in the checkpoint too; projections in one; biases inside a sum.
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3", "phi3", "gpt_oss"])
@pytest.mark.turn(4)
def test_parts_hold_the_numbers_of_the_whole(name: str, tmp_path: Path) -> None:
    make_tiny(name).save_pretrained(tmp_path)
    source = locate(tmp_path)
    config = load_config(source)
    whole = load_weights(source, config, torch.bfloat16, CPU)
    on_meta = build_on_meta(source, config, torch.bfloat16)
    plan = plan_shards(on_meta, name, 2)
    for rank in (0, 1):
        ranks = Ranks(rank, 2, CPU)
        part = read_own_shards(source, config, type(on_meta), torch.bfloat16, plan, ranks)
        found = dict(part.named_parameters()) | dict(part.named_buffers())
        for tensor in found.values():
            assert not isinstance(tensor, Unread) and not hasattr(tensor, "source")
        for path, wanted in (dict(whole.named_parameters()) | dict(whole.named_buffers())).items():
            cut = plan.shards.get(path)
            own = wanted.data if cut is None else cut.take(wanted.data, rank, 2)
            assert found[path].dtype == own.dtype and torch.equal(found[path], own), path


@pytest.mark.parametrize("form", ["gptq in order of activations", "awq", "fp8 by blocks"])
@pytest.mark.filterwarnings("ignore:.*dequantised to")
def test_parts_of_a_quantised_checkpoint_hold_the_numbers_of_the_whole(
    form: str, tmp_path: Path
) -> None:
    whole = dict(store(tmp_path, "qwen3", *FORMS[form]).named_parameters())
    for rank in (0, 1):
        ranks = Ranks(rank, 2, CPU)
        source = locate(tmp_path)
        part, plan = load_shard(source, load_config(source), torch.float32, ranks, True, None)
        for name, found in part.named_parameters():
            path = name.replace(".inner.", ".")  # of what a collective stands around
            cut = plan.shards.get(path)
            own = whole[path].data if cut is None else cut.take(whole[path].data, rank, 2)
            assert torch.equal(found, own), path
