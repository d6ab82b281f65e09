"""The Python API, in vLLM's terms: `LLM` and `SamplingParams`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sharegen.engine.engine import Engine, EngineConfig
from sharegen.engine.model import load_model, load_tokenizer
from sharegen.engine.request import Completion, Request, SamplingParams
from sharegen.errors import ModelError, RequestError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Prompt = str | Mapping[str, Seq[int]]
"""A text, or {"prompt_token_ids": [...]}."""


@dataclass
class RequestOutput:
    """A prompt and its samples, by sample index.

    prompt: the text, None where token ids were given.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[Completion] = field(default_factory=list)


class LLM:
    """A model that is ready to sample.

    model: a local folder, a hub id, or a loaded PreTrainedModel.
    tokenizer: a folder, a hub id or a loaded tokenizer; by default the model's own. Prompts of
        token ids need none.
    dtype, device: "auto" is the checkpoint's on CUDA and float32 on a CPU.
    max_sequences: sequences decoded together. kv_cache_memory: bytes.
    seed: of all requests whose SamplingParams bring none.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel,
        tokenizer: Any | None = None,
        *,
        dtype: str = "auto",
        device: str = "auto",
        max_sequences: int | None = None,
        kv_cache_memory: int | None = None,
        block_size: int = 16,
        seed: int = 0,
        adapter: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        source: Any = tokenizer
        if tokenizer is None and isinstance(model, (str, os.PathLike)):
            source = model
        if isinstance(source, (str, os.PathLike)):
            try:
                source = load_tokenizer(source, trust_remote_code=trust_remote_code)
            except ModelError:
                if tokenizer is not None:
                    raise
                source = None  # prompts of token ids need none; others say that it is missing
        self.tokenizer = source
        loaded = load_model(
            model,
            device=device,
            dtype=dtype,
            adapter=adapter,
            trust_remote_code=trust_remote_code,
        )
        self.engine = Engine(
            loaded,
            self.tokenizer,
            EngineConfig(
                max_sequences=max_sequences,
                kv_cache_memory=kv_cache_memory,
                block_size=block_size,
                seed=seed,
            ),
        )

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Sample every prompt; returns outputs in the order of the prompts.

        sampling_params: one for all prompts, or one a prompt.

        Raises RequestError for a prompt that cannot run, before anything is sampled.
        """
        single = isinstance(prompts, (str, Mapping))
        items: list[Prompt] = [prompts] if single else list(prompts)  # type: ignore[list-item]
        params = _one_each(sampling_params, len(items))
        outputs = [self._output(prompt) for prompt in items]
        requests = [
            _request(index, output.prompt_token_ids, param)
            for index, (output, param) in enumerate(zip(outputs, params, strict=True))
        ]
        for request in requests:
            self.engine.check(request)
        for completion in self.engine.generate(requests):
            outputs[completion.request.key].outputs.append(completion)
        for output in outputs:
            output.outputs.sort(key=lambda completion: completion.sample)
        return outputs

    def stream(
        self,
        prompts: Iterable[Prompt],
        sampling_params: SamplingParams | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Sample prompts as they are read; yields (index of the prompt, completion) as they finish.

        Memory grows with the sequences that run, not with the prompts.
        """
        params = sampling_params or SamplingParams()
        requests = (
            _request(index, self._output(prompt).prompt_token_ids, params)
            for index, prompt in enumerate(prompts)
        )
        for completion in self.engine.generate(requests):
            yield completion.request.key, completion

    def chat(
        self,
        messages: Seq[Mapping[str, str]] | Seq[Seq[Mapping[str, str]]],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Sample one conversation or a list of them through the tokenizer's chat template."""
        tokenizer = self._need_tokenizer("a conversation")
        if not getattr(tokenizer, "chat_template", None):
            raise RequestError("the tokenizer has no chat template: use generate() with plain text")
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if one else list(messages)
        prompts: list[Prompt] = []
        for conversation in conversations:
            text = tokenizer.apply_chat_template(
                list(conversation), add_generation_prompt=True, tokenize=False
            )
            # The template writes its own special tokens, the first one included.
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            prompts.append({"prompt_token_ids": ids})
        return self.generate(prompts, sampling_params)

    def _output(self, prompt: Prompt) -> RequestOutput:
        if isinstance(prompt, str):
            ids = self._need_tokenizer("a text prompt")(prompt)["input_ids"]
            return RequestOutput(prompt, list(ids))
        try:
            return RequestOutput(None, [int(token) for token in prompt["prompt_token_ids"]])
        except (KeyError, TypeError, ValueError):
            raise RequestError(
                'a prompt is a text or {"prompt_token_ids": [...]} with whole numbers, '
                f"not {prompt!r:.80}"
            ) from None

    def _need_tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise RequestError(
                f'{what} needs a tokenizer, and the model has none: pass {{"prompt_token_ids": '
                "[...]}} or give LLM(tokenizer=...)"
            )
        return self.tokenizer


def _request(index: int, prompt_token_ids: list[int], params: SamplingParams) -> Request:
    return Request(index, prompt_token_ids, params, range(params.n))


def _one_each(
    params: SamplingParams | Seq[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{count} prompts need {count} SamplingParams or one, not {len(params)}")
    return list(params)
