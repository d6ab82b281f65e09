"""A trainer's settings as SamplingParams, and what is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sharegen.errors import UsageError
from sharegen.trl.settings import mismatches, refuse, sampling
from tests.engine.tiny_models import make_tiny


def trainer(**settings: Any) -> Any:
    """What the rollout reads of a GRPOTrainer with its defaults."""
    values = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0,
        "max_completion_length": 256, "eos_token_ids": [2], "tools": [],
        "environment_factories": None, "processing_class": object(), "kind": "NO",
        "use_vllm": False, "use_transformers_continuous_batching": False,
        "generation_kwargs": None,
    } | settings  # fmt: skip
    kind = SimpleNamespace(value=values.pop("kind"))
    return SimpleNamespace(
        **values,
        args=SimpleNamespace(**values),
        accelerator=SimpleNamespace(distributed_type=kind),
    )


def test_the_defaults_draw_from_the_model_itself() -> None:
    params = sampling(trainer())
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.logprobs, params.detokenize) == (256, 0, False)
    assert params.stop_token_ids == (2,)


def test_every_setting_of_the_config_is_taken() -> None:
    params = sampling(trainer(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05,
                              repetition_penalty=1.1, max_completion_length=8,
                              eos_token_ids=[2, 7]))  # fmt: skip
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 40, 0.05)
    assert (params.repetition_penalty, params.max_tokens) == (1.1, 8)
    assert params.stop_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"stop": ["\n\n"]}, "stop", ("\n\n",)),
        ({"stop_strings": "\n\n"}, "stop", ("\n\n",)),
        ({"min_new_tokens": 3}, "min_tokens", 3),
        ({"max_new_tokens": 9}, "max_tokens", 9),
        ({"eos_token_id": 5}, "stop_token_ids", (2, 5)),
        ({"stop_token_ids": [5, 6]}, "stop_token_ids", (2, 5, 6)),
        ({"ignore_eos": True}, "stop_token_ids", ()),
        ({"ignore_eos": True, "eos_token_id": [5]}, "stop_token_ids", (5,)),
        ({"temperature": 0.5}, "temperature", 0.5),
        ({"presence_penalty": 0.5, "do_sample": True}, "presence_penalty", 0.5),
        ({"logit_bias": {4: -1.0}}, "logit_bias", {4: -1.0}),
    ],
)
def test_generation_kwargs_have_vllm_s_names_or_transformers(
    given: dict[str, Any], name: str, value: Any
) -> None:
    params = sampling(trainer(generation_kwargs=given))
    assert getattr(params, name) == value
    assert params.detokenize == bool(params.stop)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"n": 4}, "num_generations"),
        ({"seed": 4}, "say seed in GRPOConfig"),
        ({"do_sample": False}, "teaches nothing"),
        ({"num_beams": 4}, "learns from samples"),
        ({"temprature": 0.7}, "did you mean 'temperature'"),
        ({"use_beam_search": True}, "which is not done here"),
        ({"stop": "a", "stop_strings": "b"}, "both of its names"),
        ({"top_p": 2.0}, "top_p is 2.0"),
    ],
)
def test_other_generation_kwargs_are_refused_by_name(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sampling(trainer(generation_kwargs=given))


def test_a_trainer_as_it_comes_is_served() -> None:
    refuse(trainer())
    refuse(trainer(kind="MULTI_GPU"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"kind": "FSDP"}, r"shards the module \(FSDP\)"),
        ({"kind": "DEEPSPEED"}, r"shards the module \(DEEPSPEED\)"),
        ({"use_vllm": True}, "use_vllm=True: leave it out"),
        ({"use_transformers_continuous_batching": True}, "continuous_batching=True: leave it out"),
        ({"tools": [print]}, "tools or an environment"),
        ({"environment_factories": {None: object}}, "tools or an environment"),
        ({"processing_class": SimpleNamespace(image_processor=object())}, "images"),
        ({"temperature": 0.0}, "temperature=0.0: it must be above 0"),
    ],
)
def test_a_trainer_that_is_not_served_is_told_why(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        refuse(trainer(**settings))
    assert "\n" not in str(raised.value)


def test_what_lets_log_probabilities_differ_is_told() -> None:
    model = make_tiny("gpt2")  # with dropout
    [precision, dropout] = mismatches(trainer(bf16=True), model)
    assert (
        "in bf16, and the rollout in the module's float32: load the module in bfloat16" in precision
    )
    assert 'Rollout(dtype="bfloat16")' in precision
    assert mismatches(trainer(bf16=True), model, "bfloat16") == [dropout]
    assert mismatches(trainer(fp16=True), model, "float16") == [dropout]
    assert "in float16: say bf16=False" in mismatches(trainer(bf16=True), model, "float16")[0]
    [precision, _] = mismatches(trainer(fp16=True), model)
    assert "the module's float32: say fp16=False" in precision
    assert "in copies of the weights in float16" in mismatches(trainer(), model, "float16")[0]
    assert "dropout (transformer.drop)" in dropout
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    assert mismatches(trainer(bf16=True), model.bfloat16()) == []
    llama = make_tiny("llama")
    assert mismatches(trainer(), llama) == []
    llama.config.attention_dropout = 0.1
    assert "dropout (attention_dropout)" in mismatches(trainer(), llama)[0]


def test_a_head_in_float32_is_no_other_precision() -> None:
    """TRL's cast_lm_head_to_fp32: the layers are what counts, also where the embedding is tied."""
    model = make_tiny("llama").bfloat16()
    model.lm_head.weight = model.model.embed_tokens.weight
    model.lm_head.float()
    assert model.dtype == torch.float32
    assert mismatches(trainer(bf16=True), model) == []
