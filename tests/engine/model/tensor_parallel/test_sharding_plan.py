"""What a rank has of every architecture, told from shapes alone: no weights and no processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import Ranks, share
from sharegen.engine.model.tensor_parallel.sharding_plan import DIVISIBLE, OnFirstRank, ShardSpec
from sharegen.errors import ModelError
from tests.engine.tiny_models import CUT_IN_FOUR, TINY, tiny_config

OTHERS = sorted(n for n, (kind, _) in TINY.items() if kind in DIVISIBLE and n not in CUT_IN_FOUR)
UNCUT = sorted(n for n, (kind, _) in TINY.items() if kind not in DIVISIBLE)

# Every rank has these whole: vectors, routers, what no head has for itself (a latent that all
# share, learnt positions, what gemma4 adds a layer and token) and the parts of other modalities.
WHOLE = ("norm", "bias", "router", "mlp.gate.", "shared_expert_gate", "_a_proj", "positions",
         "per_layer", "vision_tower", "multi_modal_projector", "act_fn")  # fmt: skip


def save_config(name: str, folder: Path, **changes: Any) -> Path:
    config = tiny_config(name)
    for key, value in changes.items():
        setattr(config, key, value)
    config.save_pretrained(folder)
    return folder


def load(folder: Path, rank: int = 0, size: int = 1) -> LoadedModel:
    ranks = Ranks(rank, size, torch.device("meta")) if size > 1 else None
    return load_model(folder, device="cpu", dtype="float32", weights=False, ranks=ranks)


def check_shares(name: str, folder: Path) -> None:
    """Each parameter and the KV cache, of an inner rank's part and of the last one's."""
    whole = load(save_config(name, folder))
    sizes = {path: p.numel() for path, p in whole.model.named_parameters(remove_duplicate=False)}
    kv_heads = min(layer.num_kv_heads for layer in whole.layers)
    for rank, size in ((0, 2), (3, 4)):
        part = load(folder, rank, size)
        copies = max(1, size // kv_heads)  # ranks that have the same head of keys and values
        for path, parameter in part.model.named_parameters():
            path = path.replace(".inner.", ".")
            divisor = sizes[path] / parameter.numel()
            if any(known in path for known in (".k_proj", ".v_proj")):
                assert divisor in (size, size / copies), path
            elif any(known in path for known in WHOLE):
                assert divisor in (1, size, size / copies), path
            elif "qkv_proj" in path:  # four query heads and two each of keys and values
                assert divisor == (2 if size == 2 else 8 / 3)
            else:
                assert divisor == size, path
        for own, layer in zip(part.layers, whole.layers, strict=True):
            assert own.num_heads * size == layer.num_heads
            assert own.num_kv_heads == max(1, layer.num_kv_heads // size)
            assert (own.key_size, own.value_size) == (layer.key_size, layer.value_size)
        assert part.vocab_size == whole.vocab_size
        assert part.context_length == whole.context_length
        assert part.ranks is not None and part.ranks.rank == rank


@pytest.mark.slow
def test_fourteen_architectures_are_cut(tmp_path: Path) -> None:
    for name in CUT_IN_FOUR:
        check_shares(name, tmp_path / name)


@pytest.mark.slow
@pytest.mark.turn(10)
def test_the_other_architectures_are_cut(tmp_path: Path) -> None:
    for name in OTHERS:
        check_shares(name, tmp_path / name)


def test_kv_bytes_of_a_part(tmp_path: Path) -> None:
    folder = save_config("llama", tmp_path / "llama")
    whole = load(folder).kv_bytes_per_token
    assert [load(folder, 0, size).kv_bytes_per_token for size in (2, 4)] == [whole // 2] * 2


def test_what_is_not_cut_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    for name in UNCUT[:1]:
        with pytest.raises(ModelError, match=f"cannot be cut into 2 shards: .*{TINY[name][0]}"):
            load_model(save_config(name, tmp_path / name), device="cpu", ranks=at(2))


def at(size: int) -> Ranks:
    return Ranks(0, size, torch.device("cpu"))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "allowed"),
    [(32, 8, 3, "1, 2, 4, 8, 16, 32"), (6, 2, 4, "1, 2, 6"), (4, 2, 8, "1, 2, 4")],
)
def test_heads_that_do_not_divide_are_refused_before_weights_are_read(
    tmp_path: Path, heads: int, kv_heads: int, size: int, allowed: str
) -> None:
    folder = save_config(
        "llama", tmp_path, hidden_size=96, num_attention_heads=heads, num_key_value_heads=kv_heads
    )  # a folder without weights
    with pytest.raises(ModelError) as error:
        load_model(folder, device="cpu", ranks=at(size))
    assert str(error.value) == (
        f"model {folder} cannot be cut into {size} shards: it has {heads} attention heads on "
        f"{kv_heads} of keys and values: --tensor-parallel-size may be {allowed}"
    )


def test_adapters_and_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    folder = save_config("llama", tmp_path)
    with pytest.raises(ModelError, match="an adapter cannot be cut for several GPUs"):
        load_model(folder, device="cpu", adapter=tmp_path, ranks=at(2))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is quantised"):
        load_model(folder, device="cpu", ranks=at(2))


def test_a_pickled_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = save_config("llama", tmp_path)
    with pytest.raises(ModelError, match=r"has no model\.safetensors: several GPUs, and"):
        load_model(folder, device="cpu", ranks=at(2))


def test_shares_are_neighbours_and_cover_all() -> None:
    for units in (1, 2, 4, 5, 8, 11, 128):
        for size in (2, 4, 8):
            shares = [share(units, rank, size) for rank in range(size)]
            held = [unit for first, count in shares for unit in range(first, first + count)]
            assert sorted(set(held)) == list(range(units)) and all(count for _, count in shares)
            if units >= size:
                assert held == list(range(units))


def test_parts_of_a_tensor_put_together_are_the_whole() -> None:
    whole = torch.arange(40.0).view(8, 5)
    paired = ShardSpec(0, ((4, 4), (4, 2)))
    first, second = (paired.take(whole, rank, 2) for rank in range(2))
    assert first[:, 0].tolist() == [0, 5, 20, 25] and second[:, 0].tolist() == [10, 15, 30, 35]
    columns = [ShardSpec(1, ((5, 5),)).take(whole, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat(columns, 1), whole)
    once = [OnFirstRank().take(whole, rank, 2) for rank in range(2)]
    assert torch.equal(once[0] + once[1], whole)
