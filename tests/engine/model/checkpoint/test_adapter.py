"""A merged adapter says what peft's own forward says before it is merged, or is refused by name."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sharegen.engine.model.load import load_model
from sharegen.errors import ModelError
from tests.engine.tiny_models import make_tiny

peft = pytest.importorskip("peft")

IDS = torch.arange(5, 25)[None]
TIED: dict[str, dict[str, Any]] = {
    "head": {"target_modules": ["lm_head"]},
    "embedding": {"target_modules": ["embed_tokens"]},
    "both": {"target_modules": ["lm_head", "embed_tokens", "q_proj"]},
    "tied": {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
    "pattern": {"target_modules": r".*(lm_head|q_proj)"},
    "head in full": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "embedding in full": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "dora, head": {"target_modules": ["lm_head"], "use_dora": True},
    "dora, both": {"target_modules": ["lm_head", "embed_tokens"], "use_dora": True},
    "rslora": {"target_modules": ["lm_head", "embed_tokens"], "use_rslora": True},
    "tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [7, 8]},
    "all linear": {"target_modules": "all-linear"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose head is its embedding."""
    config = make_tiny("llama").config
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tied")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def save_adapter(folder: Path, path: Path, config: Any) -> torch.Tensor:
    """Save an adapter of random weights; returns what the model says with it, not merged."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
        with torch.no_grad():
            for parameter in tuned.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        tuned.save_pretrained(path)
        plain = AutoModelForCausalLM.from_pretrained(folder)
        loaded = peft.PeftModel.from_pretrained(copy.deepcopy(plain), path).eval()
    with torch.no_grad():
        wanted = loaded(input_ids=IDS, use_cache=False).logits[0]
        assert (plain(input_ids=IDS, use_cache=False).logits[0] - wanted).abs().max() > 1e-2
    return wanted


def logits_of(folder: Path, adapter: Path) -> torch.Tensor:
    loaded = load_model(folder, device="cpu", adapter=adapter)
    loaded.release()
    with torch.no_grad():
        return loaded.model(input_ids=IDS, use_cache=False).logits[0]


@pytest.mark.parametrize("name", TIED)
@pytest.mark.turn(3)
def test_embedding_and_head_that_share_a_weight(name: str, folder: Path, tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, init_lora_weights=False, **TIED[name])
    wanted = save_adapter(folder, tmp_path, config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        got = logits_of(folder, tmp_path)
    assert (got - wanted).abs().max() <= 2e-4


def test_what_no_weights_can_hold_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    config = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), config)
    tuned.save_pretrained(tmp_path)
    with pytest.raises(ModelError) as error:
        load_model(folder, device="cpu", adapter=tmp_path)
    assert str(error.value) == (
        f"adapter {tmp_path} is of the kind PROMPT_TUNING, which is no change of weights: give a "
        "LoRA adapter"
    )


@pytest.mark.parametrize(
    ("drop", "add", "says"),
    [
        ("layers.1", None, "lacks weights that its adapter_config.json names: it is broken"),
        (None, "layers.7", "has 1 weights for parts that the model lacks, such as base_model."),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    drop: str | None, add: str | None, says: str, folder: Path, tmp_path: Path
) -> None:
    save_adapter(folder, tmp_path, peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"]))
    file = tmp_path / "adapter_model.safetensors"
    weights = {k: v for k, v in load_file(file).items() if drop is None or drop not in k}
    if add is not None:
        name = next(key for key in weights if "layers.1" in key)
        weights[name.replace("layers.1", add)] = weights[name].clone()
    save_file(weights, file)
    with pytest.raises(ModelError, match=says):
        load_model(folder, device="cpu", adapter=tmp_path)


def test_what_peft_warns_of_is_told(folder: Path, tmp_path: Path) -> None:
    save_adapter(folder, tmp_path, peft.LoraConfig(r=4, target_modules=["q_proj"]))
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "from_the_future": 1}))
    with pytest.warns(UserWarning, match=f"^adapter {tmp_path}: .*from_the_future"):
        load_model(folder, device="cpu", adapter=tmp_path)


_LEAN = """
import sys
from sharegen.engine.model.starting.lean_imports import import_transformers

import_transformers()
from sharegen.engine.model.load import load_model

load_model(sys.argv[1], device="cpu", adapter=sys.argv[2])
"""


@pytest.mark.slow
def test_a_command_on_a_cpu_merges_it_too(folder: Path, tmp_path: Path) -> None:
    """There torch's DTensors, which peft takes for imported, are left out of transformers."""
    save_adapter(folder, tmp_path, peft.LoraConfig(target_modules=["q_proj"]))
    command = [sys.executable, "-c", _LEAN, str(folder), str(tmp_path)]
    subprocess.run(command, check=True, timeout=250)
