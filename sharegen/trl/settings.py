"""What a trainer's settings are as SamplingParams, and for which of them there is no rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from sharegen.common.names import nearest
from sharegen.engine.core.request import SamplingParams
from sharegen.errors import UsageError

_TRANSFORMERS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_strings": "stop",
    "eos_token_id": "stop_token_ids",
}
"""transformers' names in `generation_kwargs` -> ours, which are vLLM's."""

_NOT_IN_KWARGS = {
    "n": "say num_generations in GRPOConfig",
    "num_return_sequences": "say num_generations in GRPOConfig",
    "seed": "say seed in GRPOConfig",
    "logprobs": "the trainer gets those of the drawn tokens",
    "prompt_logprobs": "the trainer gets those of the drawn tokens",
    "do_sample": "a group of greedy samples has one reward and teaches nothing",
    "num_beams": "the trainer learns from samples",
}
"""What is refused in `generation_kwargs` -> why, or where it belongs."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}

_ONE_DEVICE = ("NO", "MULTI_CPU", "MULTI_GPU")
"""accelerate's names of trainers whose every process holds the whole module."""


def refuse(trainer: Any) -> None:
    """Raise UsageError, in one line, for a trainer that this rollout does not serve."""
    kind = getattr(trainer.accelerator.distributed_type, "value", "NO")
    if kind not in _ONE_DEVICE:
        raise UsageError(
            f"the trainer shards the module ({kind}), and a rollout needs it whole in each "
            "process: train on one device or with plain data parallelism, by LoRA where the "
            "optimiser's states do not fit"
        )
    for name, instead in (
        ("use_vllm", "vLLM would hold a second copy of the weights"),
        ("use_transformers_continuous_batching", "rollout_func takes its place"),
    ):
        if getattr(trainer.args, name, False):
            raise UsageError(f"GRPOConfig has {name}=True: leave it out, {instead}")
    if getattr(trainer, "tools", None) or getattr(trainer, "environment_factories", None):
        raise UsageError(
            "the trainer has tools or an environment, whose turns TRL samples by itself: leave out "
            "rollout_func, or tools and environment_factory"
        )
    if hasattr(trainer.processing_class, "image_processor"):
        raise UsageError("the trainer has a processor of images: this rollout takes texts alone")
    if not trainer.temperature > 0:
        raise UsageError(
            f"GRPOConfig has temperature={trainer.temperature}: it must be above 0, for the "
            "trainer divides its logits by it"
        )


def mismatches(trainer: Any, module: Any, dtype: str = "auto") -> list[str]:
    """What lets the trainer's log-probabilities differ from those of the rollout, in one line each.

    module: the trainer's, unwrapped. dtype: that the rollout is to compute in, as `LLM` takes it.
    """
    found = []
    computes = next((name for name in _DTYPES if getattr(trainer.args, name, False)), None)
    own = str(_dtype_of_layers(module)).removeprefix("torch.")
    dtype = own if dtype == "auto" else str(dtype).removeprefix("torch.")
    wanted = own if computes is None else _DTYPES[computes]
    if dtype != wanted and computes is None:
        found.append(
            f"the trainer computes in the module's {own}, and the rollout in copies of the weights "
            f"in {dtype}: leave dtype out of Rollout, or have the trainer compute in {dtype}, too"
        )
    elif dtype != wanted:
        its = "the module's " if dtype == own else ""
        load = f"load the module in {wanted}, " if wanted == "bfloat16" and its else ""
        found.append(
            f"the trainer computes in {computes}, and the rollout in {its}{dtype}: {load}say "
            f"{computes}=False, or have the rollout draw from copies of the weights: "
            f'Rollout(dtype="{wanted}")'
        )
    if (name := _dropout(module)) is not None:
        found.append(
            f"the trainer's forward has dropout ({name}), and the rollout has none: say "
            "disable_dropout=True in GRPOConfig"
        )
    return found


def _dtype_of_layers(module: Any) -> torch.dtype:
    """The dtype of most weights of the layers. An adapter may have another one, and so may an
    output head that the trainer casts to float32, with the embedding that it is tied to."""
    ends = (module.get_input_embeddings(), module.get_output_embeddings())
    left_out = {id(end.weight) for end in ends if end is not None}
    numbers: Counter[torch.dtype] = Counter()
    for weight in module.parameters():
        if id(weight) not in left_out:
            numbers[weight.dtype] += weight.numel()
    return max(numbers, key=numbers.__getitem__, default=module.dtype)


def _dropout(module: Any) -> str | None:
    """What of the module drops something out while it trains."""
    for name, part in module.named_modules():
        rate: float = getattr(part, "p", 0.0)
        if rate and "Dropout" in type(part).__name__:
            return name
    rate = getattr(module.config, "attention_dropout", 0.0)
    return "attention_dropout" if rate else None


def sampling(trainer: Any) -> SamplingParams:
    """How the trainer wants one sample drawn; `n` and the seed are the caller's.

    A completion ends at each of the trainer's EOS tokens, which it keeps as its last one.
    """
    given = _own(trainer.args.generation_kwargs or {})
    ends = _ids(given.pop("stop_token_ids", None))
    values = {
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k or 0,
        "min_p": trainer.min_p or 0.0,
        "repetition_penalty": trainer.repetition_penalty,
        "max_tokens": trainer.max_completion_length,
        "stop_token_ids": ends if given.get("ignore_eos") else (*trainer.eos_token_ids, *ends),
        "logprobs": 0,
        "detokenize": bool(given.get("stop")),
    }
    return SamplingParams(**(values | given))


def _own(given: Mapping[str, Any]) -> dict[str, Any]:
    """`generation_kwargs` by our own names. Raises UsageError for what is not one of them."""
    known = [each.name for each in fields(SamplingParams) if each.name not in _NOT_IN_KWARGS]
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "do_sample" and value is True:
            continue
        own = _TRANSFORMERS.get(name, name)
        if own not in known:
            near = nearest(name, [*known, *_TRANSFORMERS])
            hint = _NOT_IN_KWARGS.get(name) or (
                f"did you mean {near!r}?" if near else "leave it out"
            )
            raise UsageError(f"generation_kwargs has {name!r}, which is not done here: {hint}")
        if own in found:
            raise UsageError(f"generation_kwargs has {own!r} by both of its names: leave one out")
        found[own] = value
    return found


def _ids(ids: Any) -> tuple[int, ...]:
    """Token ids that may be one alone, as transformers takes them."""
    return (ids,) if isinstance(ids, int) else tuple(ids or ())
