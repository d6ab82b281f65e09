"""vLLM's names that are not sharegen's: what means the same here, and what there is instead.

What has the same name needs no line. `docs/reference/vllm.md` is made of this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError
from functools import wraps
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from sharegen.common.names import nearest

Made = TypeVar("Made")
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

ALIASES = {
    "max_num_seqs": "max_sequences",
    "kv_cache_memory_bytes": "kv_cache_memory",
}
"""Arguments of vLLM's LLM that are taken, and what they are called here."""

AS_ALWAYS: dict[str, tuple[Any, str]] = {
    "enable_prefix_caching": (True, "prompts that share text are always computed once"),
    "enable_chunked_prefill": (True, "prompts are always computed in chunks"),
    "skip_tokenizer_init": (False, "SamplingParams(detokenize=False) makes no texts"),
    "tokenizer_mode": ("auto", "load the tokenizer as you like it and give it as tokenizer"),
    "runner": ("auto", "there is text generation only"),
    "convert": ("auto", "there is text generation only"),
    "task": ("generate", "there is text generation only"),
    "load_format": ("auto", "weights are read as transformers reads them"),
    "pipeline_parallel_size": (1, "a model is cut by tensor_parallel_size"),
    "data_parallel_size": (1, "several engines are workers, on a cluster with ray"),
    "disable_log_stats": (True, "LLM.engine.stats counts, and nothing is logged"),
    "cpu_offload_gb": (0, "a model that is too large for a GPU is cut by tensor_parallel_size"),
}
"""Arguments of vLLM's LLM of which one value is how things always are here, which is taken; and
what to do for others."""


class VllmArguments(TypedDict, total=False):
    """What LLM takes by vLLM's names beside its own: ALIASES and AS_ALWAYS, for a type checker."""

    max_num_seqs: int
    kv_cache_memory_bytes: int
    enable_prefix_caching: Literal[True]
    enable_chunked_prefill: Literal[True]
    skip_tokenizer_init: Literal[False]
    tokenizer_mode: Literal["auto"]
    runner: Literal["auto"]
    convert: Literal["auto"]
    task: Literal["generate"]
    load_format: Literal["auto"]
    pipeline_parallel_size: Literal[1]
    data_parallel_size: Literal[1]
    disable_log_stats: Literal[True]
    cpu_offload_gb: Literal[0]


_MODES = "there is text generation only"
_MEDIA = "prompts are text or token ids"

LLM_NOT_HERE = {
    "allowed_local_media_path": _MEDIA,
    "allowed_media_domains": _MEDIA,
    "mm_processor_kwargs": _MEDIA,
    "limit_mm_per_prompt": _MEDIA,
    "tokenizer_revision": "load the tokenizer at that revision and give it as tokenizer",
    "chat_template": "set it as chat_template of the tokenizer, and give that",
    "offload_group_size": AS_ALWAYS["cpu_offload_gb"][1],
    "offload_num_in_group": AS_ALWAYS["cpu_offload_gb"][1],
    "offload_prefetch_step": AS_ALWAYS["cpu_offload_gb"][1],
    "offload_params": AS_ALWAYS["cpu_offload_gb"][1],
    "enable_return_routed_experts": "which experts computed a token is not reported",
    "disable_custom_all_reduce": "the fastest that all ranks have is taken",
    "hf_token": "log in with `hf auth login`, or set HF_TOKEN",
    "hf_overrides": "change config.json in a copy of the model's folder",
    "pooler_config": _MODES,
    "structured_outputs_config": "give SamplingParams(structured_outputs=...) alone",
    "profiler_config": "use torch's profiler around the call",
    "attention_config": "there is one attention, which reads shared text once for all",
    "compilation_config": "give compile or enforce_eager",
    "max_seq_len_to_capture": "CUDA graphs serve every length",
    "logits_processors": "use logit_bias, bad_words, allowed_token_ids or structured_outputs",
    "speculative_config": "every token is drawn from the model itself",
    "enable_lora": "give a LoRA as adapter",
    "max_loras": "give one LoRA as adapter",
    "max_lora_rank": "give a LoRA of any rank as adapter",
    "max_num_batched_tokens": "it follows from the device",
    "max_logprobs": "logprobs may ask for as many as the vocabulary has",
    "num_gpu_blocks_override": "give kv_cache_memory, in bytes",
    "distributed_executor_backend": "give workers, ray or tensor_parallel_size",
    "generation_config": "its EOS tokens are used, its sampling parameters are not: give them",
    "override_generation_config": "give SamplingParams",
    "download_dir": "set HF_HOME",
    "served_model_name": "it is a flag of sharegen serve",
    "config_format": "configs are read as transformers reads them",
    "model_loader_extra_config": "weights are read as transformers reads them",
    "scheduling_policy": "requests are taken in order",
    "guided_decoding_backend": "give SamplingParams(structured_outputs=...)",
}
"""Arguments of vLLM's LLM that are refused -> why, or what to use."""

SAMPLING_NOT_HERE = {
    "best_of": "draw n of them and keep those of the best cumulative_logprob",
    "use_beam_search": "use LLM.beam_search with BeamSearchParams",
    "length_penalty": "use LLM.beam_search with BeamSearchParams",
    "early_stopping": "use LLM.beam_search with BeamSearchParams",
    "logits_processors": "use logit_bias, bad_words, allowed_token_ids or structured_outputs",
    "guided_decoding": "use structured_outputs",
    "truncate_prompt_tokens": "cut the prompt, or its token ids",
    "output_kind": "generate returns what is finished, and stream yields it as it finishes",
    "stream_interval": "stream yields samples as they finish",
    "skip_clone": "parameters cannot be changed: dataclasses.replace makes others",
    "spaces_between_special_tokens": "texts have the spaces that the tokenizer writes",
    "flat_logprobs": "logprobs are made when they are looked at",
    "logprob_token_ids": "ask for as many logprobs as it takes",
    "prompt_logprob_token_ids": "ask for as many prompt_logprobs as it takes",
    "prompt_logprob_start": "prompt_logprobs are of the whole prompt",
    "extra_args": "there are no samplers of one's own",
    "skip_reading_prefix_cache": "what prompts share is computed once",
    "thinking_token_budget": "use max_tokens, and stop at the end of the thoughts",
    "repetition_detection": "use repetition_penalty or frequency_penalty, or cancel in a stream",
    "routed_experts_prompt_start": "which experts computed a token is not reported",
    "trace_decode_token_ids": "give the tokens as prompt, with prompt_logprobs",
    "output_text_buffer_length": "vLLM sets it itself",
}
"""Fields of vLLM's SamplingParams that are refused -> why, or what to use."""

CALL_NOT_HERE = {
    "lora_request": "give a LoRA as LLM(adapter=...)",
    "prompt_adapter_request": "prompts are text or token ids",
    "priority": "requests are taken in order",
    "tokenization_kwargs": "tokenise as you like and give token ids",
    "mm_processor_kwargs": _MEDIA,
    "chat_template": "set it as chat_template of the tokenizer",
    "chat_template_content_format": "contents are given to the template as texts",
    "prompt_token_ids": 'give {"prompt_token_ids": [...]} as a prompt',
    "guided_options_request": "give SamplingParams(structured_outputs=...)",
}
"""Arguments of vLLM's generate and chat that are refused -> why, or what to use."""

METHODS_NOT_HERE = {
    "set_tokenizer": "give LLM(tokenizer=...)",
    "get_default_sampling_params": "they are SamplingParams()",
    "encode": _MODES,
    "embed": _MODES,
    "classify": _MODES,
    "reward": _MODES,
    "score": "use prompt_logprobs for how likely a text is",
    "enqueue": "use stream",
    "wait_for_completion": "use stream",
    "start_profile": "use torch's profiler around the call",
    "stop_profile": "use torch's profiler around the call",
    "get_metrics": "use engine.stats",
    "collective_rpc": "workers take requests alone",
    "apply_model": "with an engine in this process the module is engine.model.model",
    "get_world_size": "it is what you gave as workers and tensor_parallel_size",
}
"""Methods of vLLM's LLM that there are not -> why, or what to use."""

BEAM_NOT_HERE = {
    "structured_outputs": "use SamplingParams: beams follow the likeliest texts of any form",
    "orig_prompt": "prompt and prompt_token_ids are the BeamSearchOutput's",
    "lora_request": "an LLM has one adapter or none",
}
"""Fields of vLLM's BeamSearchParams and BeamSearchSequence that there are not -> what to use."""

STRUCTURED_NOT_HERE = {
    "disable_additional_properties": 'say "additionalProperties": false in the schema',
    "whitespace_pattern": "use disable_any_whitespace, or a grammar",
    "structural_tag": "use a grammar of the whole text",
    "disable_fallback": "one library reads them all, and what it does not know is refused",
}
"""Fields of vLLM's StructuredOutputsParams that are refused -> why, or what to use."""

OUTPUT_NOT_HERE = {
    "metrics": "LLM.engine.stats counts for all requests together",
    "lora_request": "an LLM has one adapter or none",
    "encoder_prompt": "there are no encoder-decoder models",
    "encoder_prompt_token_ids": "there are no encoder-decoder models",
    "kv_transfer_params": "KV stays in the engine",
    "routed_experts": "which experts computed a token is not reported",
}
"""Fields of vLLM's outputs that there are not -> why, or what to use."""


def own_arguments(
    given: Mapping[str, Any], taken: Mapping[str, Any], names: Iterable[str]
) -> dict[str, Any]:
    """What vLLM's arguments of LLM are called here; those that say how things always are go.

    taken: our own arguments that have two names, None where they were not given. names: of all our
    own arguments. Raises TypeError, in one line, for what there is not, and for one thing by both
    of its names.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in ALIASES:
            own = ALIASES[name]
            if taken.get(own) is not None:
                raise TypeError(f"{name} is vLLM's name of {own}: give one of the two")
            found[own] = value
        elif name in AS_ALWAYS:
            always, instead = AS_ALWAYS[name]
            if value != always:
                raise TypeError(f"vLLM's {name} can only be {always!r} here: {instead}")
        else:
            known = [*names, *ALIASES, *AS_ALWAYS]
            raise TypeError(_refusal("LLM", name, LLM_NOT_HERE, known))
    return found


def refusing_call(
    what: str, known: Mapping[str, str], instead: Mapping[str, str] | None = None
) -> Callable[[Callable[Given, Returned]], Callable[Given, Returned]]:
    """A decorator of what is called with its own arguments alone, and says so in one line.

    what: its name in the message. known: vLLM's arguments -> why they are not here, or what to use.
    instead: other arguments -> where they belong. Whatever else is wrong with a call is Python's to
    tell.
    """

    def with_names(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        own = list(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*values: Given.args, **named: Given.kwargs) -> Returned:
            for name in named:
                if name not in own:
                    raise TypeError(_refusal(what, name, known, own, instead or {}))
            return function(*values, **named)

        return checked

    return with_names


def refusing(known: Mapping[str, str]) -> Callable[[type[Made]], type[Made]]:
    """A decorator of frozen dataclasses: what an argument or a change that is refused says.

    known: as for `refusing_call`.
    """

    def with_names(made: type[Made]) -> type[Made]:
        made.__init__ = refusing_call(made.__name__, known)(made.__init__)  # type: ignore[method-assign]
        made.__setattr__ = _unchangeable  # type: ignore[assignment, method-assign]
        return made

    return with_names


def _unchangeable(self: object, name: str, value: Any) -> None:
    raise FrozenInstanceError(
        f"{type(self).__name__} cannot be changed: make another one with "
        f"dataclasses.replace(params, {name}={value!r:.40})"
    )


def absent(holder: object, name: str, known: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that `holder` does not have; known: as for `refusing_call`.

    Python itself tells the nearest name where the error knows both.
    """
    if name in known:
        return AttributeError(f"vLLM's {name} is not here: {known[name]}")
    said = f"{type(holder).__name__!r} object has no attribute {name!r}"
    return AttributeError(said, name=name, obj=holder)


def _refusal(
    what: str,
    name: str,
    known: Mapping[str, str],
    own: Iterable[str],
    instead: Mapping[str, str] | None = None,
) -> str:
    if name in known:
        return f"vLLM's {name} is not here: {known[name]}"
    near = nearest(name, [each for each in own if each != "self"])
    hint = (instead or {}).get(name) or (near and f"did you mean {near!r}?")
    return f"{what} got an unexpected keyword argument {name!r}" + (f": {hint}" if hint else "")
