"""FP8 by blocks, multiplied as it is stored; a CPU emulates what a GPU would do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from sharegen.engine.model.fp8.blocks import (
    BLOCK,
    FP8BlockLinear,
    multiply_block_groups,
    multiply_blocks,
    quantise_groups,
    scaled_product,
    widened,
    widened_groups,
)
from sharegen.engine.model.fp8.products import E4M3, EMULATE
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.engine.model.load import load_model
from sharegen.engine.model.summary import Optimised, summary
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError, UsageError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.model.stored.packers import fp8_blocks, store
from tests.engine.model.stored.test_forms import FORMS
from tests.engine.tiny_models import make_tiny, tiny_config

SETTINGS = {"quant_method": "fp8", "weight_block_size": [128, 128],
            "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}  # fmt: skip


def test_each_group_of_a_row_has_its_scale() -> None:
    x = torch.randn(5, 300) * torch.tensor([1.0, 100.0, 0.01]).repeat_interleave(100)
    x[3] = 0
    numbers, scales = quantise_groups(x)
    assert numbers.dtype is E4M3 and numbers.shape == (5, 300) and scales.shape == (5, 3)
    for group in range(3):
        part = slice(group * BLOCK, (group + 1) * BLOCK)
        largest = x[:, part].abs().amax(1)
        assert torch.equal(scales[:, group], largest.clamp(min=1e-30) / 448)
        error = (widened_groups(numbers, scales) - x)[:, part].abs()
        assert (error <= largest[:, None] / 16).all()
    nothing, _ = quantise_groups(x[:0])
    assert nothing.shape == (0, 300)


def test_the_product_is_that_of_the_numbers_block_by_block() -> None:
    x, weight = torch.randn(7, 300), torch.randn(200, 300).to(E4M3)
    scales = torch.rand(2, 3) + 0.1
    numbers, own = quantise_groups(x)
    expected = torch.zeros(7, 200)
    for i in range(2):
        for j in range(3):
            rows, columns = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
            part = numbers[:, columns].double() @ weight[rows, columns].double().t()
            expected[:, rows] += (part * own[:, j : j + 1] * scales[i, j]).float()
    torch.testing.assert_close(multiply_blocks(x, weight, scales), expected, rtol=1e-5, atol=1e-4)
    bias = torch.randn(200)
    layer = FP8BlockLinear(weight, scales, bias)
    torch.testing.assert_close(layer(x[None])[0], expected + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("count", "inputs"), [(8, 512), (8, 256), (7, 1408), (1, 128), (5, 640)])
def test_the_library_takes_the_layouts_of_any_number_of_rows_and_blocks(
    count: int, inputs: int
) -> None:
    """It looks at shapes and strides of tensors without numbers, too, as a GPU's product does."""
    weight = torch.empty(384, inputs, dtype=E4M3, device="meta")
    scales = torch.empty(3, inputs // BLOCK, device="meta")
    x = torch.empty(count, inputs, dtype=torch.bfloat16, device="meta")
    numbers, own = torch.ops.sharegen.quantise_groups(x, True)
    assert len(numbers) % 4 == 0 and 0 <= len(numbers) - count < 4
    assert own.shape == (inputs // BLOCK, len(numbers))
    found = scaled_product(numbers, own, weight, scales)
    assert found.shape == (len(numbers), 384) and found.dtype is torch.bfloat16


def test_rows_of_zeros_behind_others_change_nothing() -> None:
    rows = torch.randn(6, 256)
    numbers, scales = quantise_groups(rows)
    more, scales_of_more = torch.ops.sharegen.quantise_groups(rows, True)
    assert torch.equal(more[:6].float(), numbers.float())
    assert torch.equal(scales_of_more[:, :6].t(), scales)
    assert more[6:].float().eq(0).all() and scales_of_more.isfinite().all()


def test_experts_without_tokens_have_no_part() -> None:
    x, weight = torch.randn(4, 130), torch.randn(3, 140, 130).to(E4M3)
    scales = torch.rand(3, 2, 2) + 0.1
    ends = torch.tensor([0, 4, 4])
    expected = multiply_blocks(x, weight[1], scales[1])
    assert torch.equal(multiply_block_groups(x, weight, scales, ends), expected)
    which = torch.tensor([3, 0, 0, 2])
    found = multiply_block_groups(x, weight, scales, ends, which)
    torch.testing.assert_close(found, expected[which])


def save(name: str, folder: Path) -> Any:
    """A model of which several weights have more than one block, also along both sides."""
    config = tiny_config(name)
    config.hidden_size = 160
    config.intermediate_size = 300
    if hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = BLOCK
    return store(folder, name, SETTINGS, fp8_blocks(), config)


def read(folder: Path) -> tuple[Any, str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_model(folder, device="cpu", quantization=BLOCKS)
    [line] = [str(w.message) for w in said if "FP8 by blocks" in str(w.message)]
    return loaded, line


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "deepseek_v3", "glm4"])
@pytest.mark.usefixtures("stored")
def test_a_model_computes_with_the_numbers_that_are_stored(name: str, tmp_path: Path) -> None:
    plain = save(name, tmp_path)
    loaded, line = read(tmp_path)
    assert "weights are multiplied as they are stored" in line
    found = 0
    for path, weight in loaded.model.named_parameters():
        if weight.dtype is not E4M3:
            continue
        found += 1
        scales = loaded.model.get_parameter(f"{path}_scale")
        whole = plain.get_parameter(path)
        pairs = (
            [(weight, scales, whole)]
            if weight.ndim == 2
            else zip(weight, scales, whole, strict=True)
        )
        for own, scale, expected in pairs:
            assert torch.equal(widened(own, scale), expected), path
    assert line.startswith(f"model {tmp_path}: FP8 by blocks of 128: {found} weights")
    assert loaded.model.lm_head.weight.dtype is torch.float32
    assert "GiB in FP8 by blocks" in summary(loaded, Optimised())[2]
    exact = plain(torch.arange(40)[None]).logits[0]
    hidden = loaded.trial_forward(40, 40)
    assert hidden.isfinite().all() and exact.isfinite().all()


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
@pytest.mark.usefixtures("stored")
def test_logits_and_tokens_are_those_of_the_arithmetic_that_the_checkpoint_means(
    name: str, tmp_path: Path
) -> None:
    """The judge is transformers' own model, whose linear layers quantise what they are given.

    With these weights no two tokens are nearly as likely, so that sums in another order, which may
    round a number to FP8's next one, draw the same.
    """
    torch.manual_seed(3)
    plain = save(name, tmp_path)
    for path, module in plain.named_modules():
        if type(module) is torch.nn.Linear and "layers" in path and "_proj" in path:
            module.forward = lambda x, own=module: functional.linear(
                widened_groups(*quantise_groups(x)), own.weight, own.bias
            )
        if path.endswith("experts"):
            module.forward = lambda x, chosen, weights, own=module: experts(own, x, chosen, weights)
    loaded, _ = read(tmp_path)
    prompts = forest()[:3]
    engine = make_engine(loaded, block_size=4)
    tokens = run(engine, requests_of(prompts, GREEDY)).tokens
    plain.generation_config.eos_token_id = None
    for index, prompt in enumerate(prompts):
        whole = plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert tokens[index, 0] == whole[0, len(prompt) :].tolist()


def experts(
    module: Any, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, weight in zip(chosen[token].tolist(), weights[token], strict=True):
            row = widened_groups(*quantise_groups(x[token : token + 1]))
            gate = module._apply_gate(functional.linear(row, module.gate_up_proj[expert]))
            inner = widened_groups(*quantise_groups(gate))
            out[token] += weight * functional.linear(inner, module.down_proj[expert])[0]
    return out


@pytest.mark.usefixtures("stored")
def test_blocks_that_are_joined_to_others_are_dequantised(tmp_path: Path) -> None:
    """Gate and up of 192 rows each, one and a half blocks, are joined to one weight of experts."""
    config = tiny_config("qwen3_moe")
    config.moe_intermediate_size = 192
    assert config.num_experts == 4
    plain = store(tmp_path, "qwen3_moe", SETTINGS, fp8_blocks(), config)
    loaded, line = read(tmp_path)
    assert "8 weights are multiplied as they are stored, others are dequantised" in line
    for path, weight in plain.named_parameters():
        if "experts" in path:
            assert torch.equal(loaded.model.get_parameter(path), weight)


@pytest.mark.usefixtures("stored")
def test_experts_of_which_some_are_not_in_blocks_are_dequantised(tmp_path: Path) -> None:
    plain = save("qwen3_moe", tmp_path)
    [file] = tmp_path.glob("*.safetensors")
    tensors = load_file(file)
    prefix = "model.layers.1.mlp.experts.2.down_proj.weight"
    assert tensors[prefix].dtype is E4M3
    tensors[prefix] = widened(tensors[prefix], tensors.pop(f"{prefix}_scale_inv")).bfloat16()
    save_file(tensors, file, {"format": "pt"})
    loaded, line = read(tmp_path)
    assert "8 weights are multiplied as they are stored, others are dequantised" in line
    weights = dict(loaded.model.named_parameters())
    experts = [path for path in weights if "experts" in path]
    assert len(experts) == 4
    for path in experts:
        torch.testing.assert_close(weights[path], plain.get_parameter(path), rtol=0.01, atol=0)
    assert loaded.trial_forward(40, 40).isfinite().all()


def test_a_device_without_such_products_is_refused(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    with pytest.raises(UsageError, match="leave out --quantization fp8-blocks, or give"):
        load_model(tmp_path, device="cpu", quantization=BLOCKS)


@pytest.mark.usefixtures("stored")
def test_what_is_not_stored_in_blocks_is_refused(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    store(tmp_path, "qwen3", *FORMS["gptq"], config)
    with pytest.raises(ModelError, match="not stored in FP8 by blocks: leave out --quantization"):
        load_model(tmp_path, device="cpu", quantization=BLOCKS)
    make_tiny("qwen3").save_pretrained(tmp_path / "plain")
    for weights in (True, False):
        with pytest.raises(ModelError, match="not stored in FP8 by blocks"):
            load_model(tmp_path / "plain", device="cpu", quantization=BLOCKS, weights=weights)


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_a_plan_knows_the_bytes_of_blocks(name: str, tmp_path: Path) -> None:
    config = tiny_config(name)
    config.hidden_size, config.intermediate_size, config.head_dim = 256, 256, 64
    if hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = BLOCK
    store(tmp_path, name, SETTINGS, fp8_blocks(), config)
    planned = load_model(tmp_path, device="cpu", quantization=BLOCKS, weights=False)
    loaded, _ = read(tmp_path)
    assert planned.weights_bytes == loaded.weights_bytes


@pytest.mark.usefixtures("stored")
def test_several_ranks_are_refused(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    with pytest.raises(ModelError, match="not multiplied as it is stored on several GPUs"):
        ranks = Ranks(0, 2, torch.device("cpu"))
        load_model(tmp_path, device="cpu", ranks=ranks, quantization=BLOCKS)
