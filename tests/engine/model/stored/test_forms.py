"""Quantised checkpoints: every number is what the public formats say, and broken ones are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sharegen.engine.model.fp8.products import E4M3, EMULATE
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS as AS_STORED
from sharegen.engine.model.fp8.stored_fp8 import stored_fp8
from sharegen.engine.model.load import load_model
from sharegen.engine.model.stored.forms import as_numbers, form_of
from sharegen.engine.model.stored.unread import Stored, Unread
from sharegen.errors import ModelError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.model.stored import packers
from tests.engine.model.stored.packers import Packer, Tensors, rewrite, store
from tests.engine.tiny_models import make_tiny

pytestmark = pytest.mark.filterwarnings("ignore:.*dequantised to")

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def packed(bits: int = 4, **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": bits, "type": "int", "strategy": "group", "group_size": 16} | weights
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": scheme, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
    }


def compressed_blocks(block: list[int]) -> dict[str, Any]:
    scheme = packed(8, type="float", strategy="block", block_structure=block)
    return scheme | {"format": "float-quantized"}


FORMS: dict[str, tuple[dict[str, Any], Packer]] = {
    "gptq": (GPTQ, packers.gptq()),
    "gptq of 8 bits, symmetric": (GPTQ | {"bits": 8}, packers.gptq(8, symmetric=True)),
    "gptq of 2 bits, one group": (
        GPTQ | {"bits": 2, "group_size": -1}, packers.gptq(2, size=64)),
    "gptq in order of activations": (GPTQ | {"desc_act": True}, packers.gptq(shuffled=True)),
    "gptq of the second format": (
        GPTQ | {"checkpoint_format": "gptq_v2"}, packers.gptq(v2=True)),
    "awq": (AWQ, packers.awq()),
    "packed, symmetric": (packed(symmetric=True), packers.packed_rows()),
    "packed, with zero points": (
        packed(symmetric=False), packers.packed_rows(symmetric=False)),
    "packed, a scale a row": (
        packed(8, strategy="channel", group_size=None, symmetric=True),
        packers.packed_rows(8, None)),
    "packed, in order of activations": (
        packed(actorder="group", symmetric=True), packers.packed_rows(shuffled=True)),
    "fp8 by blocks": (BLOCKS, packers.fp8_blocks()),
    "fp8 by blocks, compressed": (
        compressed_blocks([128, 128]), packers.fp8_blocks("weight_scale")),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_number_is_what_the_format_says(form: str, tmp_path: Path) -> None:
    settings, pack = FORMS[form]
    plain = store(tmp_path, "llama", settings, pack)
    with pytest.warns(UserWarning, match="dequantised to float32 while read"):
        loaded = load_model(tmp_path, device="cpu")
    assert_same(loaded.model, plain)
    half = load_model(tmp_path, device="cpu", dtype="bfloat16").model
    assert_same(half, plain.bfloat16())


def assert_same(model: torch.nn.Module, plain: torch.nn.Module) -> None:
    expected = dict(plain.named_parameters())
    found = dict(model.named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert type(weight.data) is torch.Tensor
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("form", FORMS)
def test_any_part_of_a_weight_is_read_alone(form: str, tmp_path: Path) -> None:
    settings, pack = FORMS[form]
    known = form_of("tiny", settings)
    assert known is not None
    size = (300, 200) if "blocks" in form else (40, 64)
    parts, worth = pack("a.weight", torch.randn(size))
    save_file({f"a.{name}": part for name, part in parts.items()}, tmp_path / "x.safetensors")
    stored = {k: Unread(v) for k, v in Stored.all_of(str(tmp_path / "x.safetensors")).items()}
    weight = as_numbers("tiny", known, stored, torch.float32)["a.weight"]
    assert torch.equal(weight.read(), worth)
    for first, last, left, right in ((0, 1, 0, 1), (3, 29, 5, 60), (39, 40, 0, 64), (7, 7, 2, 9)):
        part = weight[first:last, left:right]
        assert isinstance(part, Unread)
        assert torch.equal(part.read(), worth[first:last, left:right])


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_experts_that_are_stored_one_by_one(name: str, tmp_path: Path) -> None:
    plain = store(tmp_path, name, *FORMS["fp8 by blocks"])
    loaded = load_model(tmp_path, device="cpu")
    assert_same(loaded.model, plain)
    prompts = forest()[:3]
    tokens = run(make_engine(loaded, block_size=4), requests_of(prompts, GREEDY)).tokens
    plain.generation_config.eos_token_id = None
    for index, prompt in enumerate(prompts):
        whole = plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert tokens[index, 0] == whole[0, len(prompt) :].tolist()


def test_it_may_go_on_to_fp8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")
    plain = store(tmp_path, "llama", *FORMS["awq"])
    with pytest.warns(UserWarning, match="on to FP8 by rows while read"):
        loaded = load_model(tmp_path, device="cpu", quantization="fp8")
    layer = loaded.model.get_submodule("model.layers.0.mlp.up_proj")
    stored = plain.get_submodule("model.layers.0.mlp.up_proj").weight
    assert layer.weight.dtype is E4M3
    assert (
        layer.weight.float() * layer.weight_scale - stored
    ).abs().max() < stored.abs().max() / 16
    plan = load_model(tmp_path, device="cpu", quantization="fp8", weights=False)
    assert plan.weights_bytes == loaded.weights_bytes


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load_model(folder, device="cpu", **options)
    told = str(error.value)
    assert "\n" not in told and str(folder) in told
    return told


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (GPTQ | {"bits": 3}, "GPTQ of 3 bits"),
        (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ in the layout marlin"),
        (GPTQ | {"dynamic": {"-:a": {}, "+:b": {"bits": 8}}}, "other settings for some layers"),
        (GPTQ | {"dynamic": {"b": {"bits": 8}}}, "other settings for some layers"),
        (GPTQ | {"group_size": 0}, "groups of 0"),
        (AWQ | {"bits": 8}, "AWQ of 8 bits"),
        (AWQ | {"version": "gemv"}, "AWQ in the layout gemv"),
        ({"quant_method": "awq", "bits": 4, "checkpoint_format": "gemv"}, "the layout gemv"),
        (BLOCKS | {"weight_block_size": [64, 128]}, "blocks of [64, 128]"),
        (BLOCKS | {"activation_scheme": "static"}, "fixed scales of activations"),
        (compressed_blocks([64, 64]), "blocks of [64, 64]"),
        (packed(3), "of 3 bits"),
        (packed() | {"transform_config": {"R1": {}}}, "with rotations of activations"),
        (packed() | {"sparsity_config": {"format": "sparse-24"}}, "compressed-tensors, sparse"),
        (
            packed(input_activations={})
            | {
                "config_groups": {
                    "a": {"weights": {"type": "int", "num_bits": 4}},
                    "b": {"weights": {"type": "int", "num_bits": 8}},
                }
            },
            "several kinds of layers",
        ),
        (packed(strategy="tensor"), "tensor scales"),
    ],
)
def test_other_kinds_are_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as error:
        form_of("tiny", settings)
    assert named in str(error.value) and "model tiny is quantised" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (BLOCKS | {"weight_block_size": 128}, "weight_block_size"),
        (GPTQ | {"dynamic": ["a"]}, "dynamic"),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, "config_groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": 5}}}, "weights"),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": "lm"}, "modules_to_not_convert"),
    ],
)
def test_settings_that_are_no_settings_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=rf"model m: {key} in the quantization_config of its"):
        if form_of("m", settings) is None:
            stored_fp8("m", settings)


def test_layers_that_are_left_out_by_name_are_no_other_kind() -> None:
    assert form_of("tiny", GPTQ | {"dynamic": {"-:.*gate.*": {}}}) == form_of("tiny", GPTQ)


Q = "model.layers.1.self_attn.q_proj."


def change(folder: Path, to: Any) -> None:
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]

    def changed(tensors: Tensors) -> Tensors:
        to(tensors)
        return tensors

    rewrite(folder, settings, changed)


@pytest.mark.parametrize("bad", [0.0, -1.0, torch.nan, torch.inf])
@pytest.mark.parametrize("quantization", [None, "fp8", AS_STORED])
def test_a_scale_of_a_block_that_is_none(
    bad: float,
    quantization: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    store(tmp_path, "llama", *FORMS["fp8 by blocks"])
    change(tmp_path, lambda tensors: tensors[f"{Q}weight_scale_inv"].fill_(bad))
    told = refused(tmp_path, quantization=quantization)
    assert f"{Q}weight_scale_inv holds a scale that is zero, negative or no number" in told


@pytest.mark.parametrize("quantization", [None, AS_STORED])
def test_a_number_of_a_block_that_is_none(
    quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    store(tmp_path, "llama", *FORMS["fp8 by blocks"])
    change(tmp_path, lambda tensors: tensors[f"{Q}weight"].view(torch.uint8)[3, 5:6].fill_(0xFF))
    assert refused(tmp_path, quantization=quantization).endswith(
        f"{Q}weight holds NaN: the checkpoint is broken"
    )


@pytest.mark.parametrize("quantization", [None, AS_STORED])
def test_parts_that_are_missing_or_of_another_shape(
    quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    store(tmp_path, "llama", *FORMS["fp8 by blocks"])
    change(tmp_path, lambda tensors: tensors.update({f"{Q}weight_scale_inv": torch.ones(2, 1)}))
    assert f"{Q}weight_scale_inv is [2, 1] and should be [1, 1]" in refused(
        tmp_path, quantization=quantization
    )
    change(tmp_path, lambda tensors: tensors.pop(f"{Q}weight_scale_inv"))
    assert f"{Q}weight is quantised, and what it is scaled by is missing" in refused(
        tmp_path, quantization=quantization
    )
    wide = torch.zeros(32, 32, dtype=torch.float8_e5m2)
    scale = torch.ones(1, 1)
    change(tmp_path, lambda t: t.update({f"{Q}weight": wide, f"{Q}weight_scale_inv": scale}))
    assert f"{Q}weight has a scale, and is torch.float8_e5m2" in refused(
        tmp_path, quantization=quantization
    )
    change(tmp_path, lambda tensors: tensors.pop(f"{Q}weight"))
    assert f"{Q}weight is missing beside {Q}weight_scale_inv" in refused(
        tmp_path, quantization=quantization
    )


def test_parts_of_integers_that_are_broken(tmp_path: Path) -> None:
    store(tmp_path, "llama", *FORMS["gptq"])
    change(tmp_path, lambda tensors: tensors[f"{Q}g_idx"].add_(7))
    assert f"{Q}g_idx names groups outside 0 to 1" in refused(tmp_path)
    change(tmp_path, lambda tensors: tensors[f"{Q}g_idx"].sub_(7))
    change(tmp_path, lambda tensors: tensors[f"{Q}scales"].fill_(torch.nan))
    assert f"{Q}scales holds a scale that is no number" in refused(tmp_path)
    change(tmp_path, lambda tensors: tensors.pop(f"{Q}qzeros"))
    assert f"{Q}qzeros is missing beside {Q}qweight" in refused(tmp_path)


def test_a_checkpoint_that_is_none_of_what_it_says(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    rewrite(tmp_path, GPTQ, lambda tensors: tensors)
    assert "says that it is GPTQ of 4 bits, and has no such weights" in refused(tmp_path)
    assert load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("kept", [0, 50, -100])
def test_a_file_that_is_cut_short_is_named(kept: int, tmp_path: Path) -> None:
    store(tmp_path, "llama", *FORMS["fp8 by blocks"])
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    told = refused(tmp_path)
    assert told.startswith(f"{file}: is cut short or no safetensors file (")


@pytest.mark.parametrize(
    ("form", "part"),
    [("gptq", "qweight"), ("gptq", "qzeros"), ("awq", "qweight"), ("awq", "qzeros"),
     ("packed, with zero points", "weight_packed"),
     ("packed, with zero points", "weight_zero_point")],
)  # fmt: skip
def test_words_of_another_kind_are_named(form: str, part: str, tmp_path: Path) -> None:
    store(tmp_path, "llama", *FORMS[form])
    words = load_file(tmp_path / "model.safetensors")[f"{Q}{part}"]
    change(tmp_path, lambda tensors: tensors.update({f"{Q}{part}": words.float()}))
    assert f"{Q}{part} is torch.float32 and should be torch.int32" in refused(tmp_path)
    change(tmp_path, lambda tensors: tensors.update({f"{Q}{part}": words.flatten()}))
    assert f"{Q}{part} is [{words.numel()}] and should have 2 dimensions" in refused(tmp_path)


def test_scales_of_another_kind_are_named(tmp_path: Path) -> None:
    """Bytes may be exponents, which are other numbers than they look like."""
    store(tmp_path, "llama", *FORMS["fp8 by blocks"])
    scale = torch.full((1, 1), 127, dtype=torch.uint8)
    change(tmp_path, lambda tensors: tensors.update({f"{Q}weight_scale_inv": scale}))
    assert f"{Q}weight_scale_inv is torch.uint8 and should be floats" in refused(tmp_path)
    powers = torch.ones(1, 1).to(torch.float8_e8m0fnu)
    change(tmp_path, lambda tensors: tensors.update({f"{Q}weight_scale_inv": powers}))
    load_model(tmp_path, device="cpu")


def test_a_shape_that_is_none(tmp_path: Path) -> None:
    store(tmp_path, "llama", *FORMS["packed, symmetric"])
    change(tmp_path, lambda tensors: tensors.update({f"{Q}weight_shape": torch.tensor([1])}))
    assert f"{Q}weight_shape is [1] and should be [2]" in refused(tmp_path)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_a_scale_without_its_weight(name: str, tmp_path: Path) -> None:
    store(tmp_path, name, *FORMS["fp8 by blocks"])
    scales = load_file(tmp_path / "model.safetensors")
    scale = min(key for key in scales if key.endswith("up_proj.weight_scale_inv"))
    weight = scale.removesuffix("_scale_inv")
    change(tmp_path, lambda tensors: tensors.pop(weight))
    assert f"{weight} is missing beside {scale}" in refused(tmp_path)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe"])
def test_fp8_whose_config_says_nothing_of_it_is_not_read_as_numbers(
    name: str, tmp_path: Path
) -> None:
    store(tmp_path, name, *FORMS["fp8 by blocks"])
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = refused(tmp_path)
    assert "_proj.weight_scale_inv says that weights are quantised, and its config.json" in told


def test_an_expert_that_is_missing_or_of_another_shape(tmp_path: Path) -> None:
    make_tiny("qwen3_moe").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.experts.1.up_proj.weight"
    for spoiled in ({name: tensors[name][:3].contiguous()}, {}):
        rest = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(rest | spoiled, file, metadata={"format": "pt"})
        assert "such as experts, are missing or of another shape" in refused(tmp_path)


def test_an_index_without_its_files(tmp_path: Path) -> None:
    store(tmp_path, "llama", *FORMS["awq"])
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "x.safetensors"}}))
    assert "has no x.safetensors, which its model.safetensors.index.json names" in refused(tmp_path)
    for wrong in ("{}", "[]", "{", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}'):
        index.write_text(wrong)
        assert refused(tmp_path) == f"{index}: has no weight_map that names files: fetch it anew"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    load_model(tmp_path, device="cpu")
