"""vLLM's LLM and SamplingParams, with the arguments that clients pass whatever they say."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict

from sharegen import llm
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core import request
from sharegen.outputs import RequestOutput
from sharegen.prompts import Prompt, as_list

PromptType = Prompt
_ONE_LORA = "give one LoRA as LLM(adapter=...), which all requests use"


class TextPrompt(TypedDict):
    """A prompt that is a text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt that is token ids."""

    prompt_token_ids: list[int]


class LoRARequest:
    """vLLM's name for one of several LoRAs, which an LLM has not.

    Raises:
        TypeError: always, with what to use.
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        _refuse("LoRARequest", _ONE_LORA)


class GuidedDecodingParams(StructuredOutputsParams):
    """An older vLLM's name for StructuredOutputsParams."""


class SamplingParams(request.SamplingParams):
    """sharegen's, with the arguments of vLLM's that clients give the value that always holds here.

    Args:
        values, named: those of `sharegen.SamplingParams`.
        spaces_between_special_tokens: False alone: texts have the spaces that the tokenizer writes.
        guided_decoding: an older vLLM's name for `structured_outputs`.

    Raises:
        UsageError: for a value outside its range.
        TypeError: for another argument, with what to use.
    """

    def __init__(
        self,
        *values: Any,
        spaces_between_special_tokens: bool = False,
        guided_decoding: StructuredOutputsParams | None = None,
        **named: Any,
    ) -> None:
        if guided_decoding is not None:
            if named.get("structured_outputs") is not None:
                _refuse("guided_decoding beside structured_outputs", "they are one: give either")
            named["structured_outputs"] = guided_decoding
        if spaces_between_special_tokens:
            named["spaces_between_special_tokens"] = True  # refused as sharegen refuses it
        super().__init__(*values, **named)


class LLM(llm.LLM):
    """sharegen's LLM, as clients of vLLM make and ask it.

    Args:
        model: a local folder, a GGUF file or a hub id.
        enable_lora: False alone: one LoRA for all requests is `adapter`.
        max_lora_rank: of no meaning without `enable_lora`, and left out with it.
        disable_custom_all_reduce: False alone.
        named: the other arguments of `sharegen.LLM`. Those that are None have vLLM's default,
            which is sharegen's own.

    Raises:
        TypeError: for an argument that sharegen has not, with what to use.
    """

    def __init__(
        self,
        model: Any,
        *,
        enable_lora: bool = False,
        max_lora_rank: int | None = None,
        disable_custom_all_reduce: bool = False,
        **named: Any,
    ) -> None:
        if disable_custom_all_reduce:
            named["disable_custom_all_reduce"] = True  # refused as sharegen refuses it
        if enable_lora:
            _refuse("enable_lora", _ONE_LORA)
        given = {name: value for name, value in named.items() if value is not None}
        super().__init__(model, **given)
        config = _ModelConfig(str(model), self.dtype, self.context_length)
        self.llm_engine = _Engine(config, weakref.ref(self))

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: Any = None,
        *,
        use_tqdm: bool | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Sample every prompt; see `sharegen.LLM.generate`.

        Texts become tokens as in vLLM and in transformers' tokenizers: BOS is put before a text,
        also where it begins with one.

        Args:
            prompts: one or several.
            sampling_params: one for all, or one a prompt.
            use_tqdm: whether to show the progress.
            lora_request: None alone.
        """
        if lora_request is not None:
            _refuse("lora_request", _ONE_LORA)
        tokens = [self._tokens(prompt) for prompt in as_list(prompts)]
        outputs = super().generate(tokens, sampling_params, use_tqdm=use_tqdm)
        for output in outputs:  # clients copy these unasked; so has vLLM them for such models
            vars(output).update(metrics=None, encoder_prompt=None)
        return outputs

    def _tokens(self, prompt: Prompt) -> Prompt:
        """The prompt with token ids, where it is a text for a tokenizer."""
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if not isinstance(text, str) or self.tokenizer is None:
            return prompt
        given = prompt if isinstance(prompt, Mapping) else {"prompt": text}
        return {"prompt_token_ids": list(self.tokenizer(text)["input_ids"])} | dict(given)

    def chat(self, messages: Any, *values: Any, lora_request: None = None, **named: Any) -> Any:
        """Answer conversations; see `sharegen.LLM.chat`.

        Args:
            messages: one conversation or several.
            values, named: the other arguments of `sharegen.LLM.chat`.
            lora_request: None alone.
        """
        if lora_request is not None:
            _refuse("lora_request", _ONE_LORA)
        return super().chat(messages, *values, **named)


@dataclass(frozen=True)
class _ModelConfig:
    """What clients read of vLLM's config of a model.

    model: the name as it was given. dtype: of the computation. max_model_len: tokens of a prompt
    and its completion at most.
    """

    model: str
    dtype: str
    max_model_len: int


@dataclass
class _Engine:
    """What clients read of vLLM's engine. llm: whose it is, which it does not keep alive."""

    model_config: _ModelConfig
    llm: weakref.ref[LLM]

    def get_model_config(self) -> _ModelConfig:
        """The same, by vLLM's method."""
        return self.model_config

    @property
    def model_executor(self) -> NoReturn:
        """vLLM's ranks. Clients delete it to free the memory of an LLM, which closes it here."""
        raise AttributeError("vLLM's model_executor is not here: ranks are the LLM's own")

    @model_executor.deleter
    def model_executor(self) -> None:
        llm = self.llm()
        if llm is not None:
            llm.close()


def _refuse(name: str, instead: str) -> NoReturn:
    raise TypeError(f"vLLM's {name} is not here: {instead}")
