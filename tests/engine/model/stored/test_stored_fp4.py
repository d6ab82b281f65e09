"""Experts in MXFP4 that stay as they are stored: the dequantised model's tokens, in less memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import load_weights
from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.new_weights import NewWeights
from sharegen.engine.model.stored import dequantised
from sharegen.engine.model.summary import Optimised, summary
from sharegen.engine.model.tensor_parallel.load_shard import random_shard
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError, UsageError
from sharegen.kernels.fp4_words import widen
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.model.stored.packers import Tensors, rewrite, store
from tests.engine.model.stored.test_forms import FORMS
from tests.engine.model.stored.test_mxfp4 import EXPERTS, SETTINGS, Meter, read, save
from tests.engine.tiny_models import make_tiny, tiny_config

DOWN = "model.layers.0.mlp.experts.down_proj"
CPU = torch.device("cpu")


def message(folder: Path, **options: Any) -> str:
    with pytest.raises((ModelError, UsageError)) as refused:
        read(folder, **{"quantization": FP4} | options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def drawn(loaded: LoadedModel) -> dict[Any, list[int]]:
    return run(make_engine(loaded, block_size=4), requests_of(forest()[:3], GREEDY)).tokens


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-4), ("bfloat16", 0.02)])
def test_tokens_and_logits_are_those_of_the_dequantised_model(
    dtype: str, error: float, tmp_path: Path
) -> None:
    save(tmp_path, size=160)  # no multiple of what the kernel takes at a time
    kept, said = read(tmp_path, quantization=FP4, dtype=dtype)
    assert said == [
        f"model {tmp_path}: MXFP4: 4 weights of experts are multiplied as they are stored, others "
        f"are {dtype}"
    ]
    plain, _ = read(tmp_path, dtype=dtype)
    found, expected = (model.trial_forward(40, 40).float() for model in (kept, plain))
    assert (found - expected).abs().max() <= error
    assert drawn(kept) == drawn(plain)


def test_the_numbers_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    expected = dict(save(tmp_path, spread=20).named_parameters())
    loaded, _ = read(tmp_path, quantization=FP4)
    names = [name for name in expected if name.endswith(EXPERTS)]
    for name in names:
        words, scales = (loaded.model.get_parameter(name + end) for end in ("", "_scale"))
        found = widen(words, scales, 64, torch.float32)
        assert torch.equal(found.transpose(-2, -1), expected[name]), name
    others = (w for name, w in loaded.model.named_parameters() if "_proj" not in name)
    assert len(names) == 4 and all(weight.dtype is torch.float32 for weight in others)


def test_experts_take_the_bytes_that_are_stored(tmp_path: Path) -> None:
    save(tmp_path, size=128)
    loaded, _ = read(tmp_path, quantization=FP4, dtype="bfloat16")
    numbers = 4 * 128 * (256 + 128)  # of a layer's experts
    found = sum(
        weight.nbytes
        for name, weight in loaded.model.named_parameters()
        if "experts" in name and not name.endswith("_bias")
    )
    assert found * 8 == 2 * numbers * 4.25
    planned = load_model(tmp_path, device="cpu", dtype="bfloat16", quantization=FP4, weights=False)
    assert planned.weights_bytes == loaded.weights_bytes
    line = summary(loaded, Optimised())[2]
    assert "GiB in MXFP4" in line and "int" not in line


def test_memory_holds_the_result_and_one_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, layers=6, size=128)
    monkeypatch.setattr(dequantised, "_PIECE", 2**10)
    source = locate(tmp_path)
    config = load_config(source)
    with warnings.catch_warnings(), Meter() as meter:
        warnings.simplefilter("ignore")
        model: Any = load_weights(source, config, torch.bfloat16, CPU, FP4)
    result = sum(weight.nbytes for weight in model.parameters())
    layer = sum(weight.nbytes for weight in model.model.layers[0].mlp.experts.parameters())
    assert 0.9 * result < meter.most < result + layer


def change(folder: Path, edit: Callable[[Tensors], Any]) -> None:
    def edited(tensors: Tensors) -> Tensors:
        edit(tensors)
        return tensors

    rewrite(folder, SETTINGS, edited)


def test_scales_that_are_not_multiplied_are_refused(tmp_path: Path) -> None:
    save(tmp_path)
    change(tmp_path, lambda tensors: tensors[f"{DOWN}_scales"][1, 2, :1].fill_(128))
    read(tmp_path, quantization=FP4)
    change(tmp_path, lambda tensors: tensors[f"{DOWN}_scales"][1, 2, :1].fill_(131))
    assert message(tmp_path) == (
        f"model {tmp_path}: {DOWN}_scales holds a scale of 2^4, and 2^1 is the largest that is "
        "multiplied as it is stored: leave out --quantization mxfp4"
    )
    read(tmp_path)
    change(tmp_path, lambda tensors: tensors[f"{DOWN}_scales"][3, 0, :1].fill_(255))
    assert message(tmp_path) == message(tmp_path, quantization=None)


def test_experts_of_which_some_are_not_in_mxfp4_are_refused(tmp_path: Path) -> None:
    plain = save(tmp_path)

    def dequantise(tensors: Tensors) -> None:
        del tensors[f"{DOWN}_scales"], tensors[f"{DOWN}_blocks"]
        tensors[DOWN] = plain.get_parameter(DOWN).data

    change(tmp_path, dequantise)
    assert f"{DOWN} is not stored in MXFP4 as other experts are: leave out" in message(tmp_path)


def test_a_checkpoint_of_another_kind_is_refused(tmp_path: Path) -> None:
    make_tiny("gpt_oss").save_pretrained(tmp_path / "plain")
    store(tmp_path / "gptq", "qwen3", *FORMS["gptq"], tiny_config("qwen3"))
    for name in ("plain", "gptq"):
        for weights in (True, False):
            said = message(tmp_path / name, weights=weights)
            assert said.endswith("is not stored in MXFP4: leave out --quantization mxfp4")
    save(tmp_path / "mxfp4")
    said = message(tmp_path / "mxfp4", quantization="fp8-blocks")
    assert said.endswith("is not stored in FP8 by blocks: leave out --quantization fp8-blocks")


def test_a_model_without_such_experts_is_refused(tmp_path: Path) -> None:
    make_tiny("qwen3").save_pretrained(tmp_path)
    rewrite(tmp_path, SETTINGS, lambda tensors: tensors)
    assert "has no experts that could be MXFP4: leave out" in message(tmp_path, weights=False)


def test_rows_that_have_no_whole_groups_are_refused(tmp_path: Path) -> None:
    config = tiny_config("gpt_oss")
    config.hidden_size = 64
    config.intermediate_size = 80
    config.quantization_config = SETTINGS
    config.save_pretrained(tmp_path)
    assert "down_proj has rows of 80 numbers, and MXFP4 has a scale for each 32 of them: leave" in (
        message(tmp_path, weights=False)
    )


def test_several_ranks_adapters_and_modules_are_refused(tmp_path: Path) -> None:
    plain = save(tmp_path)
    ranks = Ranks(0, 2, CPU)
    said = message(tmp_path, ranks=ranks)
    assert "MXFP4 is not multiplied as it is stored on several GPUs: leave out --quant" in said
    with pytest.raises(ModelError, match="on several GPUs: leave out --quantization mxfp4"):
        random_shard(plain.config, "tiny", torch.bfloat16, ranks, FP4)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (adapter / "adapter_model.safetensors").touch()
    said = message(tmp_path, adapter=adapter)
    assert "an adapter is not merged into MXFP4: leave out --quantization mxfp4" in said
    with pytest.raises(ModelError, match="GptOssForCausalLM is not stored in MXFP4: leave out"):
        load_model(plain, quantization=FP4)


def test_weights_do_not_change_in_place(tmp_path: Path) -> None:
    save(tmp_path)
    loaded, _ = read(tmp_path, quantization=FP4)
    with pytest.raises(ModelError, match="is quantised: its weights do not change in place"):
        NewWeights(loaded, tmp_path)
