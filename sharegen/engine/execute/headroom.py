"""What a GPU must keep free beside the KV cache, seen by running the largest steps there can be.

A step of prefill and one of decoding are run without a KV cache: with a stand-in for attention,
logits for as many rows as there can be, and sampling with all filters, penalties, a bias, a list of
tokens and log-probabilities. Their peaks add up, for the graphs of decoding keep their memory to
themselves. Log-probabilities of prompts come on top.
"""

from __future__ import annotations

import torch

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.execute.attention import attention_for
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.memory import (
    check_fits,
    estimate,
    is_out_of_memory,
    left_again,
    left_beside,
    memory_of_cpu,
)
from sharegen.engine.execute.room import StepMemory
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import alone
from sharegen.engine.sample.sampler import SamplingState, ranks, sample, token_logprobs
from sharegen.errors import CapacityError, UsageError

_SMALL = 0.25  # of what is free: no steps take all the rest, so that nothing need be measured
_OUTPUT = 4096  # tokens that penalties look back at; longer ones are in the margin

_EVERYTHING = SamplingParams(
    temperature=0.8,
    top_k=50,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    logit_bias={0: 1.0},
    allowed_token_ids=(0, 1),
    logprobs=20,
)


def kv_cache_memory(
    model: LoadedModel,
    rows: int,
    tokens: int,
    block_size: int,
    *,
    blocks_per_full: int = 1,
    latents: bool = False,
    asked: int | None = None,
    limit: int | None = None,
    share: float | None = None,
) -> tuple[int, StepMemory]:
    """Bytes that the KV cache takes: what is asked, else what there is, up to the limit.

    Beside it what the largest steps take, where the model is a rank's shard or the cache what they
    leave on a GPU. They are not run for a cache so small that they have room beside it.

    rows: sequences decoded together; tokens: of a prefill batch; blocks_per_full: of the cache's
    full blocks; latents: whether it has such; share: of a GPU, for model, steps and cache. Raises
    CapacityError where there is not as much as is asked, or on a GPU no memory for such steps
    beside the model; UsageError for a share of a CPU.
    """
    on_gpu = model.device.type == "cuda"
    if share is not None and not on_gpu:
        raise UsageError(
            "gpu_memory_utilization is for a GPU, and the model is on a CPU: leave it out, or give "
            "kv_cache_memory, in bytes"
        )
    if asked is not None:
        if on_gpu:
            check_fits(asked, _free_and_total(model.device)[0], "free on the GPU beside the model")
        else:
            check_fits(asked, memory_of_cpu(), "in this machine")
    is_measured = on_gpu and (asked is None or model.ranks is not None)
    if is_measured and model.ranks is None and limit is not None and share is None:
        is_measured = limit > _free_and_total(model.device)[0] * _SMALL
    if is_measured:
        found, steps = _beside_steps(
            model, rows, tokens, block_size, blocks_per_full, latents, share
        )
    else:
        found, steps = estimate(model.device), StepMemory(tokens, rows)
    if asked is not None:
        return asked, steps
    return (found if limit is None else min(found, limit)), steps


def largest_step(model: LoadedModel, tokens: int, rows: int) -> None:
    """The model over `tokens` tokens, and `rows` draws from its logits; attention stands out."""
    device = model.device
    state = SamplingState(rows, model.vocab_size, device, eos_token_ids=model.eos_token_ids)
    state.set_rows(range(rows), [_EVERYTHING] * rows, range(rows), [[0]] * rows)
    with torch.inference_mode(), alone():
        logits = model.trial_forward(tokens, rows)
        length = min(model.context_length, _OUTPUT)
        history = torch.full((rows, length), -1, dtype=torch.int32, device=device)
        zeros = torch.zeros(rows, dtype=torch.int64, device=device)
        drawn, _ = sample(logits, state, zeros, history=history)
        token_logprobs(logits, drawn, state.features().top_logprobs)
        ranks(logits, drawn)


def _beside_steps(
    model: LoadedModel,
    rows: int,
    tokens: int,
    block_size: int,
    blocks_per_full: int,
    latents: bool,
    share: float | None,
) -> tuple[int, StepMemory]:
    """Bytes of the model's GPU, or of a share of it, that its largest steps leave; and theirs."""
    steps: StepMemory | None = None
    try:
        plans, steps, fallback = _measure(model, rows, tokens, block_size, blocks_per_full, latents)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    free, total = _free_and_total(model.device)
    if steps is None:
        raise CapacityError(
            f"a step of {rows:,} sequences does not fit beside the model: let fewer decode "
            "together (--max-sequences), or take a smaller model or dtype"
        )
    held = torch.cuda.memory_reserved(model.device)
    left = left_beside(plans + steps.prefill + steps.decode, free, total, held, share)
    # The stand-in says nothing about attention that is not done by the kernels.
    return (min(left, estimate(model.device)) if fallback else left), steps


def _measure(
    model: LoadedModel,
    rows: int,
    tokens: int,
    block_size: int,
    blocks_per_full: int,
    latents: bool,
) -> tuple[int, StepMemory, str | None]:
    """Bytes of the plans, and of the largest steps; and why the kernels do not serve, if so."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(model.device)
    scratch = KVCache(
        model.layers, blocks_per_full, block_size, model.dtype, model.device, blocks_per_full,
        latents,
    )  # fmt: skip
    attention = attention_for(model.layers, scratch, rows, tokens)
    plans = torch.cuda.memory_reserved(model.device) - before
    peaks = []
    for count in (tokens, rows):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(model.device)
        held = torch.cuda.memory_reserved(model.device)
        largest_step(model, count, rows)
        torch.cuda.synchronize(model.device)
        peaks.append(torch.cuda.max_memory_reserved(model.device) - held)
    return plans, StepMemory(tokens, rows, *peaks), attention.fallback


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that are free; 0 of a CPU, whose memory is taken as it is touched."""
    return _free_and_total(device)[0] if device.type == "cuda" else 0


def memory_again(device: torch.device, memory: int, free: int, steps: StepMemory) -> int:
    """Return the bytes for a KV cache that had `memory`, of the `free` that there were before it.

    It is as much again, or as much less as others have taken of a GPU since.
    """
    if device.type != "cuda":
        return memory
    free_now, total = _free_and_total(device)
    return left_again(memory, free, free_now, total, steps.prefill + steps.decode)


def _free_and_total(device: torch.device) -> tuple[int, int]:
    """Bytes of a GPU, when torch has given back what it does not use."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)
