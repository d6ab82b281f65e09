"""Checkpoints whose weights become FP8 as they are read, or are FP8 already."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sharegen.engine.model import load
from sharegen.engine.model.compile.fusing import fuse_projections, unfuse
from sharegen.engine.model.fp8 import loading as fp8_loading
from sharegen.engine.model.fp8.products import E4M3, EMULATE, FP8Linear, multiply, quantise_rows
from sharegen.engine.model.fp8.quantising import quantise_in_place
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError, UsageError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.tiny_models import HYBRIDS, TINY, make_tiny

TENSORS = "model.safetensors"
FUSED = "model.layers.0.self_attn.q_proj"


@pytest.fixture(autouse=True)
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny("llama").save_pretrained(tmp_path)
    return tmp_path


def read(folder: Path, **options: Any) -> LoadedModel:
    return load_model(folder, device="cpu", **options)


def message(folder: Path, **options: Any) -> str:
    with pytest.raises((ModelError, UsageError)) as error:
        read(folder, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def change(folder: Path, to: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / TENSORS)
    to(tensors)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / TENSORS)


def logits(model: LoadedModel) -> torch.Tensor:
    return model.trial_forward(40, 40).float()


def difference(quantised: torch.Tensor, exact: torch.Tensor) -> float:
    """As a share of what the logits of a row differ among themselves."""
    spread = (exact - exact.mean(-1, keepdim=True)).norm()
    return ((quantised - exact).norm() / spread).item()


def kinds(model: LoadedModel) -> dict[str, torch.dtype]:
    return {name: weight.dtype for name, weight in model.model.named_parameters()}


# -- any checkpoint --------------------------------------------------------------------------------


def assert_near(name: str, folder: Path, how_far: float = 0.25) -> None:
    """With FP8 weights the model runs, stays near, and says the same a second time."""
    make_tiny(name).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "only .* of the weights")  # some experts stay
        model = read(folder, quantization="fp8")
    assert E4M3 in kinds(model).values()
    found = logits(model)
    assert torch.equal(logits(model), found)
    assert 0 < difference(found, logits(read(folder))) < how_far


# Plain, of transposed weights, experts, transposed experts with biases and an interleaved gate.
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gpt_oss"])
def test_a_model_with_fp8_weights_stays_near_itself(name: str, tmp_path: Path) -> None:
    assert_near(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("names", [sorted(TINY)[::5], sorted(TINY)], ids=["some", "all"])
@pytest.mark.turn(2)
def test_architectures_run_with_fp8_weights(names: list[str], tmp_path: Path) -> None:
    for name in names:  # a state carries its error on to all tokens behind
        assert_near(name, tmp_path / name, 0.4 if name in HYBRIDS else 0.25)


def test_an_architecture_that_no_test_covers_passes_its_check(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 the last bits of activations decide what they become in FP8."""
    monkeypatch.setattr(load, "TESTED", frozenset())
    for dtype in ("bfloat16", "float32"):
        read(folder, quantization="fp8", dtype=dtype)


def test_what_becomes_fp8_and_what_stays(tmp_path: Path) -> None:
    make_tiny("qwen2_moe").save_pretrained(tmp_path)
    found = kinds(read(tmp_path, quantization="fp8"))
    quantised = {name.split("layers.0.")[1] for name, dtype in found.items() if dtype is E4M3
                 and "layers.0." in name}  # fmt: skip
    assert quantised == {
        *(f"self_attn.{kind}_proj.weight" for kind in "qkvo"),
        *(f"mlp.shared_expert.{kind}_proj.weight" for kind in ("gate", "up", "down")),
        "mlp.experts.gate_up_proj", "mlp.experts.down_proj",
    }  # fmt: skip
    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight",
                 "model.layers.0.mlp.shared_expert_gate.weight", "model.norm.weight",
                 "model.layers.0.self_attn.q_proj.bias"):  # fmt: skip
        assert found[name] is torch.float32


def test_weights_are_those_of_the_checkpoint_row_by_row(folder: Path) -> None:
    model = read(folder, quantization="fp8")
    layer = model.model.get_submodule("model.layers.1.mlp.down_proj")
    assert type(layer) is FP8Linear
    wanted, scales = quantise_rows(
        load_file(folder / TENSORS)["model.layers.1.mlp.down_proj.weight"]
    )
    assert torch.equal(layer.weight.float(), wanted.float())
    assert torch.equal(layer.weight_scale, scales)
    assert model.dtype is torch.float32
    assert model.fingerprint == read(folder).fingerprint  # it is the checkpoint's


def test_a_plan_knows_the_bytes_without_weights(tmp_path: Path) -> None:
    make_tiny("gpt_oss").save_pretrained(tmp_path)
    model = read(tmp_path, quantization="fp8")
    plan = read(tmp_path, quantization="fp8", weights=False)
    assert plan.weights_bytes == model.weights_bytes < read(tmp_path).weights_bytes
    assert kinds(plan) == kinds(model)


def test_a_job_draws_the_same_fused_or_not(folder: Path) -> None:
    requests = requests_of(forest()[:6], GREEDY)
    model = read(folder, quantization="fp8")
    apart = run(make_engine(model), requests).results
    before = {name: weight.clone() for name, weight in model.model.named_parameters()}
    replaced = fuse_projections(model.model)
    assert len(replaced) == 2 * 5
    assert run(make_engine(model), requests).results == apart
    unfuse(replaced)
    after = dict(model.model.named_parameters())
    assert all(torch.equal(after[name].float(), before[name].float()) for name in before)


def test_sizes_that_no_tensor_core_takes_stay() -> None:
    model = make_tiny("llama")
    model.model.layers[0].mlp.down_proj = nn.Linear(40, 32, bias=False)
    changed: Any = quantise_in_place(model, "tiny", torch.device("cpu"))
    first, second = (layer.mlp.down_proj for layer in changed.model.layers)
    assert type(first) is nn.Linear and type(second) is FP8Linear


def test_most_of_a_model_that_stays_is_told(tmp_path: Path) -> None:
    make_tiny("llama4").save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"^only \d+% of the weights in the layers of model"):
        read(tmp_path, quantization="fp8")


def test_an_adapter_is_merged_before(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    peft = pytest.importorskip("peft")
    adapter = tmp_path_factory.mktemp("adapter")
    config = peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(make_tiny("llama"), config).save_pretrained(adapter)
    merged = read(folder, adapter=adapter)
    wanted = quantise_rows(merged.model.get_parameter(f"{FUSED}.weight").data)[0]
    model = read(folder, adapter=adapter, quantization="fp8")
    assert torch.equal(model.model.get_parameter(f"{FUSED}.weight").float(), wanted.float())
    assert model.fingerprint == merged.fingerprint


def test_only_a_piece_of_one_weight_is_wide_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device, that is; of the checkpoint, a tensor is read when its turn comes."""
    make_tiny("mixtral").save_pretrained(tmp_path)
    made: list[tuple[str, int]] = []
    take = fp8_loading._Quantizer.take

    def watch(self: Any, model: Any, name: str, weight: torch.Tensor) -> torch.Tensor:
        wide = [w for w in model.parameters() if w.device.type != "meta" and w.dtype is not E4M3]
        made.append((name, sum(w.numel() for w in wide if w.ndim > 1)))
        return take(self, model, name, weight)

    monkeypatch.setattr(fp8_loading._Quantizer, "take", watch)
    model = read(tmp_path, quantization="fp8")
    stay = sum(w.numel() for w in model.model.parameters() if w.dtype is not E4M3 and w.ndim > 1)
    assert len(made) == 2 * (4 + 2)
    assert max(count for _, count in made) <= stay


# -- bad input -------------------------------------------------------------------------------------


def test_a_weight_that_is_no_number_is_named(folder: Path) -> None:
    for value in (torch.nan, torch.inf):
        change(folder, lambda tensors, v=value: tensors[f"{FUSED}.weight"][3, 5:6].fill_(v))
        told = message(folder, quantization="fp8")
        assert told.startswith(f"model {folder}: {FUSED}.weight holds NaN or infinite numbers: ")


def test_a_weight_that_is_missing_or_of_another_shape_is_named(folder: Path) -> None:
    name = f"{FUSED}.weight"
    change(folder, lambda tensors: tensors.update({name: tensors[name][:16]}))
    assert f"{name} is [16, 32] and should be [32, 32]" in message(folder, quantization="fp8")
    change(folder, lambda tensors: tensors.pop(name))
    assert f"1 weights are missing or of another shape, such as {name}" in message(
        folder, quantization="fp8"
    )


@pytest.mark.parametrize("rows", [16, 32], ids=["some", "all"])
def test_rows_of_zeros_are_no_mistake(folder: Path, rows: int) -> None:
    change(folder, lambda tensors: tensors[f"{FUSED}.weight"][:rows].zero_())
    assert logits(read(folder, quantization="fp8")).isfinite().all()


def test_what_cannot_be_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = message(folder, quantization="int3")
    assert said == "unknown quantization 'int3': use fp8, fp8-blocks, mxfp4, dequantize"
    model = make_tiny("llama")
    model.config.quantization_config = {"quant_method": "fp8"}
    with pytest.raises(ModelError, match="model LlamaForCausalLM is quantised already: leave out"):
        load_model(model, quantization="fp8")
    monkeypatch.delenv(EMULATE)
    for ranks in (None, Ranks(0, 2, torch.device("cpu"))):
        said = message(folder, quantization="fp8", ranks=ranks)
        assert said.startswith("FP8 weights need a GPU with FP8")


@pytest.mark.parametrize("method", ["bitsandbytes", "fp8", "compressed-tensors"])
def test_two_quantisations_at_once(folder: Path, method: str) -> None:
    describe(folder, {"quant_method": method, "bits": 4})
    assert message(folder, quantization="fp8") == (
        f"model {folder} is quantised already ({method}): leave out --quantization fp8"
    )


# -- checkpoints that are FP8 ----------------------------------------------------------------------


def describe(folder: Path, settings: dict[str, Any]) -> None:
    """Say of the checkpoint how it is quantised."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))


def compressed(strategy: str, **more: Any) -> dict[str, Any]:
    """As llm-compressor writes it: FP8 weights, and activations that are scaled as they come."""
    group = {
        "targets": ["Linear"],
        "weights": {"type": "float", "num_bits": 8, "strategy": strategy},
        "input_activations": {"type": "float", "num_bits": 8, "dynamic": True},
    } | more
    return {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


FBGEMM = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}


def store_fp8(folder: Path, settings: dict[str, Any], per_row: bool = True) -> None:
    """Make the checkpoint one that holds FP8."""

    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "_proj" in name]:
            values, scale = quantise_rows(tensors[name])
            if not per_row:
                scale = scale.amax().view(1)
                values = (tensors[name] / scale).to(E4M3)
            tensors[name], tensors[f"{name}_scale"] = values, scale.bfloat16()

    change(folder, quantise)
    describe(folder, settings)


@pytest.mark.parametrize(
    ("settings", "per_row"),
    [(compressed("channel"), True), (compressed("tensor"), False), (FBGEMM, True)],
)
def test_a_checkpoint_that_is_fp8_runs_as_fp8(
    folder: Path, settings: dict[str, Any], per_row: bool
) -> None:
    exact = logits(read(folder))
    store_fp8(folder, settings, per_row)
    stored = load_file(folder / TENSORS)
    for dtype in ("float32", "bfloat16"):
        model = read(folder, dtype=dtype)
        layer = model.model.get_submodule(FUSED)
        assert type(layer) is FP8Linear
        assert torch.equal(layer.weight.float(), stored[f"{FUSED}.weight"].float())
        scale = stored[f"{FUSED}.weight_scale"].float().expand(32, 1)
        assert torch.equal(layer.weight_scale, scale)
        x = torch.randn(3, 32)
        assert torch.equal(layer(x), multiply(x, layer.weight, scale, None))
        assert difference(logits(model), exact) < 0.25
    assert sum(isinstance(part, FP8Linear) for part in model.model.modules()) == 14
    assert kinds(read(folder, weights=False, dtype="bfloat16")) == kinds(model)


@pytest.mark.parametrize("value", [0.0, -1.0, torch.nan])
def test_a_scale_that_is_none_is_named(folder: Path, value: float) -> None:
    store_fp8(folder, compressed("channel"))
    change(folder, lambda tensors: tensors[f"{FUSED}.weight_scale"][7:8].fill_(value))
    assert message(folder) == (
        f"model {folder}: {FUSED}.weight_scale holds a scale that is zero, negative or no number: "
        "the checkpoint is broken"
    )


def test_what_else_is_wrong_in_a_checkpoint_that_is_fp8(folder: Path) -> None:
    store_fp8(folder, compressed("channel"))
    name = f"{FUSED}.weight"

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(torch.uint8)[0, 0] = 0x7F  # e4m3's NaN

    change(folder, spoil)
    assert f"{name} holds NaN, or numbers that are not FP8" in message(folder)
    change(folder, lambda tensors: tensors.pop(f"{name}_scale"))
    assert f"such as {name}_scale" in message(folder)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8"),
        ({"quant_method": "mxfp8"}, "mxfp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt"),
        (compressed("channel", input_activations=None),
         "compressed-tensors, channel scales, activations that are not FP8"),
        (compressed("channel", targets=["re:.*q_proj"]),
         "compressed-tensors, several kinds of layers"),
    ],
)  # fmt: skip
def test_fp8_of_another_kind_is_refused_and_never_widened(
    folder: Path, settings: dict[str, Any], kind: str
) -> None:
    describe(folder, settings)
    for weights in (True, False):
        assert message(folder, weights=weights) == (
            f"model {folder} is FP8 of a kind that sharegen does not run ({kind}): give its "
            "checkpoint in bfloat16, with --quantization fp8, or one with a scale a row"
        )


@pytest.mark.parametrize("name", ["mixtral", "glm4_moe", "qwen3_moe"])
@pytest.mark.parametrize("per_row", [True, False])
def test_experts_with_a_scale_a_row_are_dequantised_while_read(
    name: str, per_row: bool, tmp_path: Path
) -> None:
    """As GLM-FP8 is published: a scale for each row of each expert."""
    make_tiny(name).save_pretrained(tmp_path)
    before = load_file(tmp_path / TENSORS)
    packed = {key for key in before if re.search(r"(_proj|\.w\d)\.weight$", key)}
    stored, worth = {}, {}
    for key in packed:
        values, scale = quantise_rows(before[key])
        if not per_row:
            scale = scale.amax().view(1)
            values = (before[key] / scale).to(E4M3)
        stored |= {key: values, f"{key}_scale": scale}
        worth[key] = values.float() * scale
    save_file(before | worth, tmp_path / TENSORS, metadata={"format": "pt"})
    exact = read(tmp_path)
    change(tmp_path, lambda tensors: tensors.update(stored))
    describe(tmp_path, compressed("channel" if per_row else "tensor"))
    with pytest.warns(UserWarning, match="FP8 with a scale a row, dequantised to float32 while"):
        found = read(tmp_path)
    for path, weight in exact.model.named_parameters():
        assert torch.equal(found.model.get_parameter(path), weight), path
    narrow = read(tmp_path, quantization="fp8")
    assert E4M3 in kinds(narrow).values()
    assert kinds(read(tmp_path, quantization="fp8", weights=False)) == kinds(narrow)
    assert difference(logits(narrow), logits(exact)) < 0.25


def test_what_is_wrong_with_experts_that_are_fp8_is_named(tmp_path: Path) -> None:
    make_tiny("qwen3_moe").save_pretrained(tmp_path)
    store_fp8(tmp_path, compressed("channel"))
    name = "model.layers.1.mlp.experts.1.up_proj.weight"
    for value in (0.0, torch.nan):
        change(tmp_path, lambda tensors: tensors[f"{name}_scale"][3:4].fill_(value))  # noqa: B023
        assert f"{name}_scale holds a scale that is zero" in message(tmp_path)
    change(tmp_path, lambda tensors: tensors[f"{name}_scale"].fill_(1.0))
    change(tmp_path, lambda tensors: tensors[name].view(torch.uint8)[0, :1].fill_(0x7F))
    assert f"{name} holds NaN" in message(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({f"{name}_scale": torch.ones(3, 1)}))
    assert f"{name}_scale is [3, 1] and should be" in message(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop(f"{name}_scale"))
    assert f"{name} is quantised, and what it is scaled by is missing" in message(tmp_path)


def test_experts_of_another_method_that_are_fp8_are_refused(tmp_path: Path) -> None:
    make_tiny("mixtral").save_pretrained(tmp_path)
    describe(tmp_path, FBGEMM)
    assert "has experts in FP8, whose scales are not read" in message(tmp_path)


def test_a_convolution_is_no_expert(tmp_path: Path) -> None:
    make_tiny("qwen3_5").save_pretrained(tmp_path)
    store_fp8(tmp_path, compressed("channel", targets=["Linear"]))
    loaded = read(tmp_path)
    assert any(isinstance(part, FP8Linear) for part in loaded.model.modules())


def test_a_checkpoint_that_is_fp8_needs_a_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_fp8(folder, compressed("channel"))
    monkeypatch.delenv(EMULATE)
    assert "or give a checkpoint without FP8" in message(folder)
