"""vLLM's modules that clients import, and where each name is in sharegen."""

from __future__ import annotations

_LLM = "sharegen.as_vllm.llm"
_OUTPUTS = "sharegen.outputs"
_PARAMS = {
    "SamplingParams": _LLM,
    "BeamSearchParams": "sharegen.engine.core.request",
    "StructuredOutputsParams": "sharegen.common.structured",
}
_PROMPTS = {"TextPrompt": _LLM, "TokensPrompt": _LLM, "PromptType": _LLM}
_TOKENIZERS = {"get_tokenizer": "sharegen.as_vllm.tokenizers"}
_BEAMS = {"BeamSearchOutput": _OUTPUTS, "BeamSearchSequence": _OUTPUTS}
_GROUPS = dict.fromkeys(
    ("destroy_distributed_environment", "destroy_model_parallel"), "sharegen.as_vllm.groups"
)
_RESULTS = {"CompletionOutput": _OUTPUTS, "RequestOutput": _OUTPUTS}

MODULES: dict[str, dict[str, str]] = {
    "vllm": {"LLM": _LLM} | _PARAMS | _PROMPTS | _RESULTS,
    "vllm.beam_search": _BEAMS,
    "vllm.distributed": _GROUPS,
    "vllm.distributed.parallel_state": _GROUPS,
    "vllm.entrypoints": {},
    "vllm.entrypoints.chat_utils": {"resolve_hf_chat_template": "sharegen.as_vllm.tokenizers"},
    "vllm.entrypoints.llm": {"LLM": _LLM},
    "vllm.inputs": _PROMPTS,
    "vllm.inputs.data": _PROMPTS,
    "vllm.logprobs": {"Logprob": _OUTPUTS},
    "vllm.lora": {},
    "vllm.lora.request": {"LoRARequest": _LLM},
    "vllm.outputs": _RESULTS,
    "vllm.sampling_params": _PARAMS | {"GuidedDecodingParams": _LLM},
    "vllm.sequence": {"Logprob": _OUTPUTS},
    "vllm.tokenizers": _TOKENIZERS,
    "vllm.transformers_utils": {},
    "vllm.transformers_utils.tokenizer": _TOKENIZERS,
}
"""Module -> its names -> the module of sharegen that has them, by the same name."""

_SERVER = "start `sharegen serve` and call it as an OpenAI endpoint"

_RANKS = "ranks and workers are LLM's: tensor_parallel_size, workers"

NOT_HERE = {
    "vllm.AsyncLLMEngine": _SERVER,
    "vllm.AsyncEngineArgs": _SERVER,
    "vllm.engine": "use LLM, whose arguments are EngineArgs' own",
    "vllm.engine.async_llm_engine": _SERVER,
    "vllm.EngineArgs": "give its arguments to LLM",
    "vllm.LLMEngine": "use LLM",
    "vllm.PoolingParams": "there is text generation only",
    "vllm.PoolingOutput": "there is text generation only",
    "vllm.EmbeddingRequestOutput": "there is text generation only",
    "vllm.ClassificationRequestOutput": "there is text generation only",
    "vllm.ScoringRequestOutput": "there is text generation only",
    "vllm.entrypoints.openai": _SERVER,
    "vllm.distributed.device_communicators": _RANKS,
    "vllm.distributed.parallel_state.get_world_group": _RANKS,
    "vllm.distributed.utils": _RANKS,
    "vllm.multimodal": "prompts are text or token ids",
    "vllm.v1": _SERVER,
}
"""Names of vLLM's that there are not, or whole modules -> what to use."""
