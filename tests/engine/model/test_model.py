from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.model import interface
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.self_check import DenseContext
from sharegen.errors import ModelError, UsageError
from tests.engine.tiny_models import HYBRIDS, TINY, make_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny("llama").save_pretrained(tmp_path)
    return tmp_path


def logits_of(loaded: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(len(ids), device=ids.device)
    with torch.no_grad(), interface.active(DenseContext(loaded.layers, rows * 0, rows)):
        return loaded.forward(ids, rows, rows)


def test_a_folder_on_the_cpu_is_float32(folder: Path) -> None:
    loaded = load_model(folder, device="cpu")
    assert loaded.dtype == torch.float32
    assert loaded.device == torch.device("cpu")
    assert loaded.context_length == 256
    assert loaded.vocab_size == 128
    assert loaded.eos_token_ids == (2,)
    assert not loaded.model.training
    assert loaded.kv_bytes_per_token == 2 * 2 * (8 + 8) * 4  # layers, heads, K and V, bytes


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16])
def test_dtype_is_what_was_asked_for(folder: Path, dtype: Any) -> None:
    loaded = load_model(folder, device="cpu", dtype=dtype)
    assert loaded.dtype == loaded.model.dtype
    assert str(loaded.dtype).endswith(str(dtype).removeprefix("torch."))
    assert loaded.kv_bytes_per_token == 2 * 2 * (8 + 8) * 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8': use auto, float32, float16, bfloat16"),
        ({"dtype": torch.int8}, "dtype torch.int8 is not supported"),
        ({"device": "gpu"}, "unknown device 'gpu': use auto, cpu or cuda"),
        ({"device": "meta"}, "device 'meta' is not supported: use auto, cpu or cuda"),
    ],
)
def test_wrong_options_are_usage_errors(folder: Path, option: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_model(folder, **option)
    assert message in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_cuda_asked_for_and_absent(folder: Path) -> None:
    with pytest.raises(UsageError) as error:
        load_model(folder, device="cuda")
    assert str(error.value) == "device cuda was asked for but no CUDA GPU is available"


def test_a_loaded_model_is_used_as_it_is_and_given_back() -> None:
    model = make_tiny("llama").to(torch.bfloat16)
    loaded = load_model(model)
    assert loaded.model is model
    assert loaded.dtype == torch.bfloat16
    for _ in range(2):
        with loaded.ours():
            assert model.config._attn_implementation == "sharegen"
        assert model.config._attn_implementation == "eager"
    with pytest.raises(ModelError, match="in use already"):
        load_model(model)
    loaded.release()
    assert model.config._attn_implementation == "eager"
    assert not any(hasattr(module, "sharegen_layer") for module in model.modules())
    load_model(model).release()


def test_every_part_of_a_nested_model_is_given_back() -> None:
    model = make_tiny("gemma3-image-text")
    model.set_attn_implementation({"": "eager", "text_config": "eager", "vision_config": "sdpa"})
    loaded = load_model(model)
    with loaded.ours():
        assert model.config.text_config._attn_implementation == "sharegen"
    loaded.release()
    assert model.config.text_config._attn_implementation == "eager"
    assert model.config.vision_config._attn_implementation == "sdpa"


def test_end_tokens_from_the_generation_config_then_the_config() -> None:
    model = make_tiny("llama")
    for given, wanted in ((5, (5,)), ([7, 9], (7, 9)), (None, (2,))):
        model.generation_config.eos_token_id = given
        loaded = load_model(model)
        assert loaded.eos_token_ids == wanted
        loaded.release()
    model.config.eos_token_id = None
    assert load_model(model).eos_token_ids == ()


def test_rows_of_logits_are_picked_before_the_head() -> None:
    model = make_tiny("llama")
    loaded = load_model(model)
    seen: list[torch.Size] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    ids, rows = torch.arange(5, 25), torch.tensor([19, 4])
    position = torch.arange(20)
    with torch.no_grad(), interface.active(DenseContext(loaded.layers, ids * 0, position)):
        picked = loaded.forward(ids, position, rows)
    assert seen == [torch.Size([1, 2, 32])]
    assert torch.allclose(picked, logits_of(loaded, ids)[rows], atol=1e-5)


def test_a_head_that_takes_no_rows_gives_the_same() -> None:
    class OldStyle(type(make_tiny("llama"))):  # type: ignore[misc]
        def forward(self, input_ids: Any, position_ids: Any = None, use_cache: Any = None) -> Any:
            return super().forward(input_ids, position_ids=position_ids, use_cache=use_cache)

    model = make_tiny("llama")
    ids, rows = torch.arange(5, 15), torch.arange(10)
    loaded = load_model(model)
    wanted = logits_of(loaded, ids)
    loaded.release()
    model.__class__ = OldStyle
    loaded = load_model(model)
    with torch.no_grad(), interface.active(DenseContext(loaded.layers, ids * 0, rows)):
        got = loaded.forward(ids, rows, torch.tensor([3, 9]))
    assert torch.allclose(got, wanted[[3, 9]], atol=1e-5)


_NEEDS_NUMBERS = {"aria", "dbrx", "jetmoe", "longcat_flash"}  # their experts loop over counts


_SLOW = set(HYBRIDS) - {"jamba", "mamba"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in _SLOW else [])
        for name in sorted(set(TINY) - _NEEDS_NUMBERS)
    ],
)
@pytest.mark.turn(5)
def test_the_config_alone_is_enough_to_plan(name: str, tmp_path: Path) -> None:
    make_tiny(name).save_pretrained(tmp_path)
    full = load_model(tmp_path, device="cpu")
    bare = load_model(tmp_path, device="cpu", weights=False)
    assert {weight.device.type for weight in bare.model.parameters()} == {"meta"}
    assert [mixer.states for mixer in bare.mixers] == [mixer.states for mixer in full.mixers]
    for key in ("layers", "context_length", "eos_token_ids", "vocab_size", "dtype", "fingerprint"):
        assert getattr(bare, key) == getattr(full, key), key


def test_a_model_that_cannot_be_planned_says_so(tmp_path: Path) -> None:
    make_tiny("jetmoe").save_pretrained(tmp_path)
    with pytest.raises(ModelError) as error:
        load_model(tmp_path, weights=False)
    assert str(error.value) == (
        f"model {tmp_path} cannot be planned from its config alone: its forward needs numbers"
    )


def test_adapter_is_merged(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    peft = pytest.importorskip("peft")
    lora = tmp_path_factory.mktemp("lora")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = peft.get_peft_model(make_tiny("llama"), config).eval()
    tuned.save_pretrained(lora)
    ids = torch.arange(5, 20)
    with torch.no_grad():
        wanted = tuned(input_ids=ids[None], use_cache=False).logits[0]
    plain = load_model(folder, device="cpu")
    merged = load_model(folder, device="cpu", adapter=lora)
    assert (logits_of(merged, ids) - wanted).abs().max() <= 1e-4
    assert (logits_of(plain, ids) - wanted).abs().max() > 1e-2
    assert merged.fingerprint != plain.fingerprint
    planned = load_model(folder, device="cpu", adapter=lora, weights=False)
    assert planned.fingerprint == merged.fingerprint


def test_a_folder_without_an_adapter_is_named(folder: Path) -> None:
    with pytest.raises(ModelError) as error:
        load_model(folder, adapter=folder)
    assert str(error.value) == f"adapter folder {folder} has no adapter_config.json"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "mixtral", "deepseek_v3"])
@pytest.mark.turn(5)
@pytest.mark.slow
def test_forward_traces_without_graph_breaks(name: str) -> None:
    """What torch.compile and CUDA graphs need: nothing on the host looks at the numbers."""
    loaded = load_model(make_tiny(name))
    ids, rows = torch.arange(5, 21), torch.arange(16)
    with torch.no_grad(), interface.active(DenseContext(loaded.layers, ids * 0, rows)):
        explained = torch._dynamo.explain(loaded.forward)(ids, rows, rows)
    assert explained.graph_break_count == 0, explained.break_reasons


def test_a_model_on_several_devices_is_refused() -> None:
    model = make_tiny("llama")
    model.model.layers[1].to("meta")
    with pytest.raises(ModelError) as error:
        load_model(model)
    assert str(error.value) == (
        "model LlamaForCausalLM is spread over several devices (cpu, meta): load it on one"
    )
