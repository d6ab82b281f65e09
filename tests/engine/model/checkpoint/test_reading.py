"""FP8 by blocks is multiplied as it is stored where that works, and else a line says why not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from sharegen.engine.model.checkpoint import reading
from sharegen.engine.model.checkpoint.reading import DEQUANTIZE
from sharegen.engine.model.fp8.blocks import no_block_products
from sharegen.engine.model.fp8.products import E4M3, EMULATE
from sharegen.engine.model.load import load_as_stored, load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError
from tests.engine.model.stored.packers import fp8_blocks, store
from tests.engine.model.stored.test_forms import BLOCKS, FORMS
from tests.engine.tiny_models import make_tiny, tiny_config

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint in blocks, on a machine that multiplies them."""
    monkeypatch.setenv(EMULATE, "1")
    store(tmp_path / "blocks", "qwen3", BLOCKS, fp8_blocks(), tiny_config("qwen3"))
    return tmp_path / "blocks"


def read(folder: Path, dtype: str = "bfloat16", **how: Any) -> tuple[LoadedModel, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_model(folder, "cpu", dtype, **how)
    lines = [str(w.message) for w in said if "FP8 by blocks" in str(w.message)]
    assert len(lines) == (how.get("weights") is not False)
    return loaded, lines[0] if lines else ""


def has_blocks(loaded: LoadedModel) -> bool:
    return any(weight.dtype is E4M3 for weight in loaded.model.parameters())


def test_blocks_are_multiplied_as_they_are_stored(folder: Path) -> None:
    loaded, line = read(folder)
    assert has_blocks(loaded) and loaded.quantization == "fp8-blocks"
    assert "weights are multiplied as they are stored" in line
    planned, _ = read(folder, weights=False)
    assert planned.quantization == "fp8-blocks"


def test_they_are_dequantised_where_that_is_asked(folder: Path) -> None:
    loaded, line = read(folder, quantization=DEQUANTIZE)
    assert not has_blocks(loaded) and loaded.quantization is None
    assert line.endswith("FP8 by blocks of 128, dequantised to bfloat16 while read")


def test_a_device_without_such_products_has_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EMULATE)
    loaded, line = read(folder)
    assert not has_blocks(loaded) and loaded.quantization is None
    assert line.endswith("dequantised to bfloat16 while read, for a CPU has no products of them")


def test_a_gpu_that_is_too_old_or_wrong_has_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "wrong_block_products", lambda device: "products are not right")
    assert read(folder)[1].endswith("while read, for products are not right")
    gpu = torch.device("cuda")
    assert torch.cuda.is_available() or no_block_products(gpu) is None  # it may be elsewhere
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Ada")
    said = no_block_products(gpu)
    assert said == "Ada has compute capability 8.9, and 9.0 is the least"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert no_block_products(gpu) is None
    monkeypatch.delattr(functional, "scaled_mm", raising=False)
    assert no_block_products(gpu) == f"torch {torch.__version__} has no product of them"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_have_numbers(folder: Path, dtype: str) -> None:
    loaded, line = read(folder, dtype)
    assert not has_blocks(loaded)
    assert line.endswith(f"dequantised to {dtype} while read, for their products are in bfloat16")


def test_what_takes_numbers_has_them(folder: Path, tmp_path: Path) -> None:
    numbers = load_as_stored(folder, torch.bfloat16)
    assert {weight.dtype for weight in numbers.parameters()} == {torch.bfloat16}
    ranks = Ranks(0, 2, CPU)
    planned, _ = read(folder, ranks=ranks, weights=False)
    assert not has_blocks(planned) and planned.quantization is None
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(make_tiny("qwen3"), lora).save_pretrained(tmp_path / "adapter")
    loaded, line = read(folder, adapter=tmp_path / "adapter")
    assert not has_blocks(loaded)
    assert line.endswith("while read, for an adapter is merged into numbers")


def test_nothing_is_dequantised_where_nothing_is_quantised(tmp_path: Path) -> None:
    plain = make_tiny("qwen3")
    plain.save_pretrained(tmp_path / "plain")
    for weights in (True, False):
        with pytest.raises(ModelError, match="no weights that are dequantised: leave out --quant"):
            load_model(tmp_path / "plain", "cpu", quantization=DEQUANTIZE, weights=weights)
    with pytest.raises(ModelError, match="is loaded already: leave out quantization"):
        load_model(plain, quantization=DEQUANTIZE)
    store(tmp_path / "gptq", "qwen3", *FORMS["gptq"], tiny_config("qwen3"))
    with pytest.warns(UserWarning, match="dequantised to float32 while read"):
        assert load_model(tmp_path / "gptq", "cpu", quantization=DEQUANTIZE).quantization is None
