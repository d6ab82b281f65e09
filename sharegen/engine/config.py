"""What an engine is told, and what it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral

from sharegen.engine.cache.prefix_tree import LOOKAHEAD
from sharegen.errors import UsageError

MAX_SEQUENCES = {"cpu": 256, "cuda": 1024}
"""Rows where nobody says: what saturates the device."""

KV_CACHE_DTYPES = ("auto", "fp8")

_MOST_SEQUENCES = 1 << 16  # far beyond what is of use; every row has tables of its own


@dataclass(frozen=True)
class EngineConfig:
    """max_sequences: rows decoded together. kv_cache_memory: bytes; where not given a share of a
    CPU's memory, and on a GPU what the largest steps leave; kv_cache_limit: no more than that then,
    where a job cannot use more; gpu_memory_utilization: the part of a GPU that weights, steps and
    KV cache may take together then. max_model_len: tokens of prompt and output together, by default
    what the model's context holds. block_size: tokens of a KV block. seed: of requests without one.
    prefill_tokens: tokens of one prefill batch. compile: torch.compile the layers (on a GPU);
    enforce_eager: neither that nor CUDA graphs.
    kv_cache_dtype: "fp8" keeps in 8 bits the KV that one sample alone reads, "auto" all of it in
    the model's dtype. state_slots: for the states of nodes and rows, where a model keeps any; by
    default two a row, in up to half of the memory.
    swap_space: GiB of host memory, for each GPU, that take the KV of preempted samples; 0: they
    compute it again.
    lookahead: requests whose sharing is looked for together; the next so many are read when half of
    the last have been prefilled.
    """

    max_sequences: int | None = None
    kv_cache_memory: int | None = None
    kv_cache_limit: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    seed: int = 0
    prefill_tokens: int | None = None
    compile: bool = True
    enforce_eager: bool = False
    lookahead: int = LOOKAHEAD
    state_slots: int | None = None
    swap_space: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_sequences", "kv_cache_memory", "kv_cache_limit", "max_model_len",
                     "block_size", "prefill_tokens", "lookahead", "state_slots"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}: it must be at least 1")
        if not isinstance(self.seed, Integral):
            raise UsageError(f"seed is {self.seed!r}: it must be a whole number")
        if not 0 <= self.swap_space < math.inf:
            raise UsageError(f"swap_space is {self.swap_space}: it must be GiB, 0 or more")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise UsageError(f"gpu_memory_utilization is {share}: it must be above 0, at most 1")
        if share is not None and self.kv_cache_memory is not None:
            raise UsageError(
                "kv_cache_memory and gpu_memory_utilization both say how large the KV cache is: "
                "give one of them"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise UsageError(
                f"kv_cache_dtype is {self.kv_cache_dtype!r}: it must be one of "
                f"{', '.join(KV_CACHE_DTYPES)}"
            )
        if self.max_sequences is not None and self.max_sequences > _MOST_SEQUENCES:
            raise UsageError(
                f"max_sequences is {self.max_sequences}: it must be at most {_MOST_SEQUENCES}"
            )


@dataclass
class EngineStats:
    """Counts since the engine was made; running, waiting and blocks_used are of this moment.

    cancelled: samples that had begun when they were, with the tokens that they had drawn; those of
    which the prompt's logits gave a first token alone are counted by their tokens only.
    copies: completions that nobody computed, for a greedy request's samples are all the same.
    slots: sequences that can decode together in one engine.
    prompt_tokens_recomputed: of those computed, the ones whose KV had been given up for others.
    prompt_tokens_found: tokens whose KV had stayed from earlier requests that were done, each time
    they were come for; they are not among those computed.
    steps_by_levels: decoding steps by the levels of the tree that were read once for all rows
    under them: "0 1" for roots and their children, "" where every row read all by itself.
    swaps: of the preemptions those whose KV went to host memory; tokens_replayed: tokens that the
    others gave to the model a second time.
    shrinks: how often a step found no memory, and the next ones were made smaller.
    idle: of several engines under one driver, the numbers of those that have nothing to do now.
    peak_kv: bytes of the KV cache at the step with most of it in use, on all GPUs of the engine;
    kv_in_steps: places for tokens, summed over the decoding steps. Of both what was "reserved" and
    "used", and what was wasted: "ahead", "internal", "external" (`schedule/usage.py` says how).
    states_total, peak_states: slots for the states of mixers, and how many were taken at once;
    mixers: what computes these, of a model that has any. device: "cpu" or "cuda".
    engines: that these are the counts of.
    slow_attention: why the kernels do not serve this model on this GPU, where they don't, and plain
    torch does; slow_steps: steps that it did.
    """

    prompt_tokens_asked: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_recomputed: int = 0
    prompt_tokens_found: int = 0
    generated_tokens: int = 0
    completions: int = 0
    copies: int = 0
    requests_done: int = 0
    cancelled: int = 0
    cancelled_tokens: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    preemptions: int = 0
    swaps: int = 0
    tokens_replayed: int = 0
    shrinks: int = 0
    running: int = 0
    waiting: int = 0
    slots: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    peak_blocks: int = 0
    peak_kv: dict[str, int] = field(default_factory=dict)
    kv_in_steps: dict[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    steps_by_levels: dict[str, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    states_total: int = 0
    peak_states: int = 0
    mixers: str | None = None
    device: str | None = None
    engines: int = 0
    slow_attention: str | None = None
    slow_steps: int = 0
