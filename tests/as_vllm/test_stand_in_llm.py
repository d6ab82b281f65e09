"""vLLM's LLM and SamplingParams as clients call them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharegen import LLM as OWN
from sharegen.as_vllm.groups import destroy_distributed_environment, destroy_model_parallel
from sharegen.as_vllm.llm import (
    LLM,
    GuidedDecodingParams,
    LoRARequest,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from sharegen.as_vllm.tokenizers import get_tokenizer, resolve_hf_chat_template
from sharegen.errors import UsageError
from tests.tiny import save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("as_vllm") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    """Made as lm-eval makes vLLM's, which names all of its arguments."""
    with LLM(
        model=str(folder), revision=None, dtype="auto", tokenizer=None, tokenizer_mode="auto",
        tokenizer_revision=None, trust_remote_code=False, tensor_parallel_size=1,
        max_model_len=None, max_num_seqs=None, quantization=None, seed=1234, enable_lora=False,
        max_lora_rank=16, disable_custom_all_reduce=False,
    ) as made:  # fmt: skip
        yield made


def test_tokens_are_sharegen_s_own(llm: LLM, folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, prompt_logprobs=1)
    prompts = [TokensPrompt(prompt_token_ids=[5, 6, 7]), TextPrompt(prompt="one")]
    found = llm.generate(prompts, sampling_params=[params] * 2, use_tqdm=False, lora_request=None)
    with OWN(folder) as own:
        expected = own.generate([[5, 6, 7], "one"], params)
    assert [one.outputs[0].token_ids for one in found] == [
        one.outputs[0].token_ids for one in expected
    ]
    assert found[0].prompt_logprobs is not None and found[0].prompt_logprobs[0] is None


def test_clients_read_the_context(llm: LLM) -> None:
    config = llm.llm_engine.model_config
    assert config is llm.llm_engine.get_model_config()
    assert config.max_model_len == llm.context_length


def test_clients_free_it_as_they_free_vllm_s(folder: Path) -> None:
    llm = LLM(str(folder), kv_cache_memory=1 << 20)
    with pytest.raises(AttributeError, match="model_executor is not here"):
        llm.llm_engine.model_executor  # noqa: B018
    destroy_model_parallel()
    destroy_distributed_environment()
    del llm.llm_engine.model_executor
    with pytest.raises(UsageError, match="closed"):
        llm.generate("one")


def test_parameters_are_copied_and_sent() -> None:
    params = SamplingParams(n=2, spaces_between_special_tokens=False)
    assert isinstance(replace(params, n=3), SamplingParams)
    assert pickle.loads(pickle.dumps(params)) == params


def test_what_sharegen_has_not_is_refused_by_name(llm: LLM, folder: Path) -> None:
    for refused in (
        lambda: LoRARequest("name", 1, "path"),
        lambda: LLM(str(folder), enable_lora=True),
        lambda: LLM(str(folder), hf_overrides={"a": 1}),
        lambda: LLM(str(folder), disable_custom_all_reduce=True),
        lambda: SamplingParams(spaces_between_special_tokens=True),
        lambda: SamplingParams(best_of=3),
        lambda: llm.generate("one", lora_request="a"),  # type: ignore[arg-type]
        lambda: llm.chat([{"role": "user", "content": "one"}], lora_request="a"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=r"^vLLM's .* is not here: "):
            refused()


def test_tokenizers(folder: Path) -> None:
    tokenizer = get_tokenizer(str(folder), tokenizer_mode="auto", revision=None)
    assert tokenizer.chat_template
    assert (
        resolve_hf_chat_template(tokenizer, None, None, model_config=None)
        == tokenizer.chat_template
    )
    assert resolve_hf_chat_template(tokenizer, "{{ 1 }}", None) == "{{ 1 }}"
    tokenizer.chat_template = None
    assert resolve_hf_chat_template(tokenizer, None, None) is None
    with pytest.raises(ValueError, match="'mistral'"):
        get_tokenizer(str(folder), tokenizer_mode="mistral")


def test_older_names_of_structured_outputs(llm: LLM) -> None:
    guided = GuidedDecodingParams(choice=["yes", "no"])
    params = SamplingParams(temperature=0, max_tokens=8, guided_decoding=guided)
    [output] = llm.generate(["Is it?"], params)
    assert output.outputs[0].text in ("yes", "no")
    assert output.metrics is None and output.encoder_prompt is None
    with pytest.raises(TypeError, match="give either"):
        SamplingParams(guided_decoding=guided, structured_outputs=guided)
