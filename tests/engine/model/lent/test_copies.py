"""Copies of a trained module's weights: adapters merged, other dtypes, and the module untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharegen.engine.model.compile.fusing import fuse_projections, refresh
from sharegen.engine.model.fp8.products import EMULATE
from sharegen.engine.model.interface import ValuesOnly, active
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.errors import ModelError
from tests.engine.tiny_models import make_tiny

peft = pytest.importorskip("peft")

IDS = torch.arange(5, 25)[None]


def gradients(model: Any) -> list[torch.Tensor]:
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.requires_grad]


def logits(loaded: LoadedModel) -> torch.Tensor:
    """Of tokens that see themselves alone: [20, vocabulary]."""
    index = torch.arange(20)
    with torch.inference_mode(), active(ValuesOnly()):
        return loaded.forward(IDS[0], index, index)


def logits_of_own(model: Any) -> torch.Tensor:
    """The same by the module's own forward: every token is a sequence of its own."""
    model.eval()
    with torch.no_grad():
        found = model(input_ids=IDS.T, position_ids=torch.arange(20)[:, None], use_cache=False)
    model.train()
    return found.logits[:, 0]


KINDS: dict[str, tuple[str, Any]] = {
    "lora": ("llama", peft.LoraConfig(target_modules="all-linear", lora_dropout=0.5)),
    "rslora": ("qwen2", peft.LoraConfig(target_modules=["q_proj", "down_proj"], use_rslora=True)),
    "dora": ("llama", peft.LoraConfig(target_modules=["v_proj", "up_proj"], use_dora=True)),
    "conv1d": ("gpt2", peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)),
    "ia3": ("llama", peft.IA3Config(target_modules=["k_proj", "down_proj"],
                                    feedforward_modules=["down_proj"])),
    "tied": ("gemma2", peft.LoraConfig(target_modules=["embed_tokens", "lm_head", "q_proj"])),
    "experts": ("qwen3_moe", peft.LoraConfig(
        target_modules=["q_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
    "saved": ("llama", peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_adapters_are_merged_in_copies_alone(kind: str) -> None:
    name, config = KINDS[kind]
    torch.manual_seed(1)
    whole = peft.get_peft_model(make_tiny(name), config).train()
    model = whole.get_base_model()
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.2)
    stood = {key: weight.clone() for key, weight in whole.state_dict().items()}
    torch.manual_seed(2)
    before = gradients(whole)
    expected = logits_of_own(model)
    loaded = load_model(model)
    with loaded.ours():
        kinds = peft.tuners.tuners_utils.BaseTunerLayer
        assert not any(isinstance(part, kinds) for part in model.modules())
    torch.testing.assert_close(logits(loaded), expected, rtol=1e-4, atol=1e-4)
    torch.manual_seed(2)
    assert all(map(torch.equal, gradients(whole), before))
    with torch.no_grad():
        for weight in whole.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn_like(weight) * 0.2)
    changed = logits_of_own(model)
    assert not torch.allclose(changed, expected, atol=1e-2)
    loaded.refresh()
    torch.testing.assert_close(logits(loaded), changed, rtol=1e-4, atol=1e-4)
    loaded.release()
    frozen = {key for key, weight in whole.named_parameters() if not weight.requires_grad}
    for key, weight in whole.state_dict().items():
        assert key not in frozen or torch.equal(weight, stood[key])
    assert not any(getattr(part, "merged_adapters", ()) for part in whole.modules())


def test_which_adapter_is_active_is_part_of_what_is_looked_at() -> None:
    whole = peft.get_peft_model(make_tiny("llama"), peft.LoraConfig(
        target_modules=["q_proj", "up_proj"], init_lora_weights=False))  # fmt: skip
    whole.add_adapter("other", peft.LoraConfig(target_modules=["v_proj"], init_lora_weights=False))
    model = whole.get_base_model()
    loaded = load_model(model)
    loaded.weights.look()
    found = [logits(loaded)]
    for change in (
        lambda: whole.set_adapter("other"),
        whole.base_model.disable_adapter_layers,
        whole.base_model.enable_adapter_layers,
        whole.merge_adapter,
    ):
        change()
        assert loaded.weights.look() == "changed"
        expected = logits_of_own(model)
        loaded.refresh()
        found.append(logits(loaded))
        torch.testing.assert_close(found[-1], expected, rtol=1e-4, atol=1e-4)
    default, other, none, again, merged = found
    assert not torch.allclose(default, other) and not torch.allclose(other, none)
    torch.testing.assert_close(again, other)
    torch.testing.assert_close(merged, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe"])
def test_weights_in_another_dtype(name: str, tmp_path: Path) -> None:
    model = make_tiny(name).train()
    before = gradients(model)
    loaded = load_model(model, dtype="bfloat16")
    assert loaded.dtype == torch.bfloat16 and model.dtype == torch.float32
    for _ in range(2):
        model.save_pretrained(tmp_path)
        narrow = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
        expected = load_model(narrow)
        assert torch.equal(logits(loaded), logits(expected))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        loaded.refresh()
    loaded.release()
    model.load_state_dict(make_tiny(name).state_dict())
    assert all(map(torch.equal, gradients(model), before))


@pytest.mark.parametrize(("name", "dtype"), [("llama", "bfloat16"), ("qwen3_moe", "auto"),
                                             ("qwen2", "auto")])  # fmt: skip
def test_large_weights_in_fp8(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    model = make_tiny(name).train()
    before = gradients(model)
    implementation = model.config._experts_implementation
    loaded = load_model(model, dtype=dtype, quantization="fp8")
    with loaded.changing():
        replaced = fuse_projections(model, is_lent=True)
    loaded.on_change(refresh, replaced)
    for _ in range(2):
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
        assert model.config._experts_implementation == implementation
        model.save_pretrained(tmp_path)
        stored = load_model(tmp_path, dtype="float32" if dtype == "auto" else dtype,
                            quantization="fp8")  # fmt: skip
        # A folder's are rounded to bfloat16 before they are quantised.
        expected, tolerance = logits(stored).float(), 1e-5 if dtype == "auto" else 0.1
        assert (logits(loaded).float() - expected).norm() <= tolerance * expected.norm()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        loaded.refresh()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0, 0] = torch.nan
    says = r"layers\.0\.self_attn\.q_proj\.weight holds NaN or infinite numbers: its training has"
    with pytest.raises(ModelError, match=says):
        loaded.refresh()
    loaded.release()
    model.load_state_dict(make_tiny(name).state_dict())
    assert all(map(torch.equal, gradients(model), before))
