"""FP8 weights of models that are cut: those of one GPU, with activations scaled by each rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import build_on_meta
from sharegen.engine.model.fp8 import experts as fp8_experts
from sharegen.engine.model.fp8.products import E4M3, EMULATE, FP8Linear, multiply, multiply_groups
from sharegen.engine.model.load import load_model
from sharegen.engine.model.tensor_parallel.load_shard import plan_shards
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.sharding_plan import ShardSpec, TensorParallelPlan
from sharegen.errors import ModelError
from tests.engine.model.fp8.test_loading import change, compressed, store_fp8
from tests.engine.model.tensor_parallel.test_load_shard import greedy
from tests.engine.rank_processes import on_ranks
from tests.engine.tiny_models import tiny_config

# Plain, one projection into q, k and v, experts, transposed experts with biases and a gate that is
# interleaved, a latent attention beside shared experts.
NAMES = ["llama", "phi3", "mixtral", "gpt_oss", "deepseek_v3"]
WIDE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 96, "moe_intermediate_size": 32, "v_head_dim": 16,
        "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "kv_lora_rank": 32}  # fmt: skip


@pytest.fixture(autouse=True)
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")


def save(name: str, folder: Path, **changes: Any) -> Path:
    """A tiny model of which every part of a large weight has sizes that tensor cores take."""
    config = tiny_config(name)
    for key, value in (WIDE | changes).items():
        if hasattr(config, key):
            setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    model.save_pretrained(folder / name)
    return folder / name


@dataclass(frozen=True)
class Part:
    tokens: list[list[int]]
    logits: torch.Tensor
    weights: dict[str, torch.Tensor]
    weights_bytes: int


def read_parts(
    ranks: Ranks, folder: str, names: list[str], quantization: str | None
) -> dict[str, Part]:
    found = {}
    for name in names:
        part = load_model(f"{folder}/{name}", device="cpu", ranks=ranks, quantization=quantization)
        weights = {name: weight.detach().clone() for name, weight in part.model.named_parameters()}
        found[name] = Part(*greedy(part), weights, part.weights_bytes)
    return found


def plan_of(folder: Path) -> TensorParallelPlan:
    source = locate(folder)
    return plan_shards(build_on_meta(source, load_config(source), torch.float32), folder.name, 2)


def widened(path: str, weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A weight in FP8 as numbers, in the layout of the model."""
    rows = weights[path].float() * weights[f"{path}_scale"]
    return rows.transpose(-2, -1) if name == "gpt_oss" and rows.ndim == 3 else rows


def scale_by_parts(model: Any, plan: TensorParallelPlan, patch: pytest.MonkeyPatch) -> None:
    """Have one process scale activations as ranks do: each the columns that it has."""
    for name, module in model.named_modules():
        cut = plan.shards.get(f"{name}.weight")
        if type(module) is FP8Linear and isinstance(cut, ShardSpec) and cut.dim == 1:
            patch.setattr(module, "forward", _by_parts(module, plan, f"{name}.weight"))
    [down] = {tuple(cut.pieces) for name, cut in plan.shards.items()
              if name.endswith("experts.down_proj")} or {None}  # fmt: skip
    if down is not None:
        patch.setattr(fp8_experts, "_project", _experts_by_parts(ShardSpec(-1, down)))


def _by_parts(
    module: FP8Linear, plan: TensorParallelPlan, name: str
) -> Callable[..., torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        cut = plan.shards[name]
        assert isinstance(cut, ShardSpec)
        last = ShardSpec(-1, cut.pieces)
        one, other = (
            multiply(last.take(x, rank, 2), cut.take(module.weight.float(), rank, 2).to(E4M3),
                     module.weight_scale, module.bias if rank == 0 else None)
            for rank in range(2)
        )  # fmt: skip
        return one + other

    return forward


def _experts_by_parts(cut: ShardSpec) -> Callable[..., torch.Tensor]:
    plain = fp8_experts._project

    def project(module: Any, name: str, x: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        if name != "down_proj":
            return plain(module, name, x, *where)
        expert, ends = where
        weight, scale = module.down_proj.float(), module.down_proj_scale
        one, other = (
            multiply_groups(cut.take(x, rank, 2), cut.take(weight, rank, 2).to(E4M3), scale, ends)
            for rank in range(2)
        )
        return one + other + (module.down_proj_bias[expert] if module.has_bias else 0)

    return project


@pytest.mark.slow
@pytest.mark.parametrize("names", [["llama", "gpt_oss"], NAMES], ids=["some", "all"])
@pytest.mark.turn(2)
def test_ranks_have_the_weights_of_one_gpu_and_draw_as_it_would(
    names: list[str], tmp_path: Path
) -> None:
    for name in names:
        save(name, tmp_path)
    parts = on_ranks(2, read_parts, str(tmp_path), names, "fp8")
    for name in names:
        plan = plan_of(tmp_path / name)
        whole = load_model(tmp_path / name, device="cpu", quantization="fp8")
        weights = dict(whole.model.named_parameters())
        fp8 = {path for path, weight in weights.items() if weight.dtype is E4M3}
        assert fp8
        for rank, part in enumerate(parts):
            own = part[name].weights
            assert {path for path, weight in own.items() if weight.dtype is E4M3} == fp8
            for path in fp8:
                expected = plan.shards_of(path, widened(path, weights, name))
                found = widened(path, own, name)
                assert torch.equal(found, expected[rank % len(expected)]), path
        with pytest.MonkeyPatch.context() as patch:
            scale_by_parts(whole.model, plan, patch)
            tokens, logits = greedy(whole)
        for part in parts:
            assert part[name].tokens == tokens
            assert (part[name].logits - logits).abs().max() <= 1e-4
        ranks = Ranks(0, 2, torch.device("cpu"))
        planned = load_model(tmp_path / name, ranks=ranks, quantization="fp8", weights=False)
        assert planned.weights_bytes == parts[0][name].weights_bytes


def test_a_weight_stays_whose_parts_have_sizes_that_no_tensor_core_takes(tmp_path: Path) -> None:
    save("llama", tmp_path, intermediate_size=16)
    ranks = Ranks(0, 2, torch.device("cpu"))
    part = load_model(tmp_path / "llama", ranks=ranks, quantization="fp8", weights=False).model
    fp8 = {name for name, weight in part.named_parameters() if weight.dtype is E4M3}
    assert fp8 == {name for name, _ in part.named_parameters() if "self_attn" in name
                   and name.endswith("_proj.weight")}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "per_row"),
    [(compressed("channel"), True), (compressed("tensor"), False)],
    ids=["channel", "tensor"],
)
@pytest.mark.turn(2)
def test_a_checkpoint_that_is_fp8_is_cut_as_it_is(
    settings: dict[str, Any], per_row: bool, tmp_path: Path
) -> None:
    folder = save("llama", tmp_path)
    store_fp8(folder, settings, per_row)
    plan = plan_of(folder)
    whole = load_model(folder, device="cpu")
    weights = dict(whole.model.named_parameters())
    parts = on_ranks(2, read_parts, str(tmp_path), ["llama"], None)
    fp8 = {path for path, weight in weights.items() if weight.dtype is E4M3}
    for rank, part in enumerate(parts):
        own = part["llama"].weights
        assert {path for path, weight in own.items() if weight.dtype is E4M3} == fp8
        for path in fp8:
            expected = plan.shards_of(path, widened(path, weights, "llama"))[rank]
            assert torch.equal(widened(path, own, "llama"), expected), path
    scale_by_parts(whole.model, plan, pytest.MonkeyPatch())
    assert parts[0]["llama"].tokens == greedy(whole)[0]
    planned = load_model(folder, ranks=Ranks(0, 2, torch.device("cpu")), weights=False)
    assert planned.weights_bytes == parts[0]["llama"].weights_bytes


def test_what_is_wrong_in_a_checkpoint_that_is_fp8(tmp_path: Path) -> None:
    narrow = save("llama", tmp_path / "narrow", intermediate_size=16)
    store_fp8(narrow, compressed("channel"))
    with pytest.raises(ModelError, match=r"mlp\.gate_proj\.weight is FP8, of which a shard"):
        load_model(narrow, ranks=Ranks(0, 2, torch.device("cpu")), weights=False)


@pytest.mark.slow
def test_what_is_wrong_is_named_by_every_rank(tmp_path: Path) -> None:
    """Also by that rank whose part of the row is sound."""
    scale = "model.layers.1.mlp.down_proj.weight_scale"
    zero, missing = (save("llama", tmp_path / name) for name in ("zero", "missing"))
    for folder in (zero, missing):
        store_fp8(folder, compressed("channel"))
    change(zero, lambda tensors: tensors[scale][7:8].fill_(0))
    change(missing, lambda tensors: tensors.pop(scale))
    weight = "model.layers.0.mlp.down_proj.weight"
    broken = save("llama", tmp_path / "broken")
    change(broken, lambda tensors: tensors[weight][3, :1].fill_(torch.nan))
    folders = {str(zero): None, str(missing): None, str(broken): "fp8"}
    for of_zero, of_missing, of_broken in on_ranks(2, refusals, folders):
        assert f"{scale} holds a scale that is zero, negative or no number" in of_zero
        assert f"1 weights are missing or of another shape, such as {scale}" in of_missing
        assert of_broken.endswith(
            f"{weight} holds NaN or infinite numbers: the checkpoint is broken"
        )


def refusals(ranks: Ranks, folders: dict[str, str | None]) -> list[str]:
    """What a rank says of each folder, read with a quantisation or without."""
    said = []
    for folder, quantization in folders.items():
        with pytest.raises(ModelError) as error:
            load_model(folder, device="cpu", ranks=ranks, quantization=quantization)
        said.append(str(error.value))
    return said
