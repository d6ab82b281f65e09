"""An LLM over a module that is somebody else's: trained meanwhile, wrapped, and given back."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from sharegen import LLM, SamplingParams
from sharegen.errors import ModelError, UsageError
from tests.engine.tiny_models import make_tiny
from tests.engine.tokenizers_for_tests import byte_level

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(5, 45))
PROMPTS: list[Any] = [{"prompt_token_ids": [*PROMPT, last]} for last in (50, 51, 52)]
MEMORY = 1 << 20


def tokens(llm: LLM) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


def generated(model: Any) -> list[list[int]]:
    model.eval()
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.no_grad():
            text = model.generate(
                input_ids=ids, attention_mask=ids * 0 + 1, max_new_tokens=8, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        found.append(text[0, ids.shape[1] :].tolist())
    return found


def test_a_module_comes_back_in_the_mode_in_which_it_came() -> None:
    model = make_tiny("llama").train()
    model.model.layers[1].eval()  # as who freezes a part of it leaves it
    modes = [part.training for part in model.modules()]
    with LLM(model, kv_cache_memory=MEMORY):
        assert not model.training
    assert [part.training for part in model.modules()] == modes
    with LLM(model.eval(), kv_cache_memory=MEMORY):
        pass
    assert not model.training


def test_a_module_that_cannot_be_run_keeps_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_tiny("llama").train()
    monkeypatch.setattr("sharegen.engine.model.load.probe", _refuse)
    with pytest.raises(ModelError, match="no"):
        LLM(model, kv_cache_memory=MEMORY)
    assert model.training


def _refuse(*_: Any) -> None:
    raise ModelError("no")


@pytest.mark.parametrize("write", ["through data", "in place", "as a parameter", "as data"])
@pytest.mark.turn(2)
def test_weights_that_were_changed_are_those_of_the_next_call(write: str) -> None:
    model = make_tiny("llama")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tokens(llm) == first  # nothing has changed
        torch.manual_seed(3)
        for layer in model.model.layers:
            weight = layer.self_attn.k_proj.weight
            with torch.no_grad():
                other = weight + torch.randn_like(weight)
                if write == "in place":
                    weight.copy_(other)
                elif write == "through data":
                    weight.data.copy_(other)
                elif write == "as data":
                    weight.data = other
                else:
                    layer.self_attn.k_proj.weight = nn.Parameter(other)
        with pytest.warns(UserWarning, match="weights have changed since the last call"):
            second = tokens(llm)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert tokens(llm) == second
    assert second == generated(model) != first


def test_a_module_that_trains_between_calls_draws_without_dropout() -> None:
    model = make_tiny("gpt2")
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        model.train()
        assert tokens(llm) == first


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_a_module_that_is_called_meanwhile_says_who_has_it(name: str) -> None:
    model = make_tiny(name)
    ids = torch.tensor([PROMPT])
    says = "the model is in use by an LLM: close that before you call the model"
    with LLM(model, kv_cache_memory=MEMORY), pytest.raises(UsageError, match=says):
        model(input_ids=ids)
    assert model(input_ids=ids).logits.shape[1] == len(PROMPT)


def test_a_peft_model_is_run_with_its_adapter() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False,
                             lora_dropout=0.5)  # fmt: skip
    model = peft.get_peft_model(make_tiny("llama"), config)
    before = generated(model)
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = tokens(llm)
        assert first == before
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter))
        with pytest.warns(UserWarning, match="weights have changed"):
            second = tokens(llm)
    assert second == generated(model) != first


def test_what_is_no_model_is_named() -> None:
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    wrong: list[tuple[Any, str]] = [
        (peft.get_peft_model(make_tiny("llama"), config), "the PeftModel is of the kind PROMPT_TU"),
        (nn.Linear(2, 2), "the model is a Linear: give a folder, a hub id or a transformers"),
        (nn.DataParallel(make_tiny("llama")), "which this one has as .module"),
        (5, "the model is a int: give a folder"),
    ]
    for model, says in wrong:
        with pytest.raises(ModelError, match=says):
            LLM(model)
    lora = peft.get_peft_model(make_tiny("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UsageError, match="workers load the model themselves"):
        LLM(lora, workers=2)


def test_an_end_that_the_configs_do_not_name_is_told() -> None:
    """generate() goes on beyond it, and so do we; vLLM stops there."""
    tokenizer = byte_level()  # ends with 1; the model with 2
    says = (
        r"^the tokenizer's eos_token '</s>' \(1\) is none of the model's ends \(2\): samples go on "
        r"beyond it, as in generate\(\); stop_token_ids \[1\] ends them there$"
    )
    with pytest.warns(UserWarning, match=says):
        LLM(make_tiny("llama"), tokenizer, kv_cache_memory=MEMORY).close()
    model = make_tiny("llama")
    model.generation_config.eos_token_id = [2, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(model, tokenizer, kv_cache_memory=MEMORY).close()
