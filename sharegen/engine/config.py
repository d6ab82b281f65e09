"""What an engine is told, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from sharegen.common.parameters.machine import EngineParameters
from sharegen.common.parameters.parameter import Parameter, check, declared, described
from sharegen.engine.cache.prefix_tree import LOOKAHEAD
from sharegen.errors import UsageError

MAX_SEQUENCES = {"cpu": 256, "cuda": 1024}
"""Rows where nobody says: what saturates the device."""


@described()
@dataclass(frozen=True, kw_only=True)
class EngineConfig(EngineParameters):
    """The sizes and options of an engine.

    kv_cache_memory: By default a share of a CPU's memory, and on a GPU what the largest steps
        leave.
    """

    kv_cache_limit: Annotated[
        int | None,
        Parameter("The most bytes of a KV cache whose memory is not given.", ge=1),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        Parameter(
            "The part of a GPU that weights, steps and KV cache may take together.", gt=0, le=1
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Parameter(
            "The most tokens of prompt and output together; None is what the model's context "
            "holds.",
            ge=1,
        ),
    ] = None
    seed: Annotated[int, Parameter("Random seed of requests without one.")] = 0
    prefill_tokens: Annotated[int | None, Parameter("Tokens of one prefill batch.", ge=1)] = None
    enforce_eager: Annotated[
        bool, Parameter("Whether nothing is compiled and no CUDA graph is captured.")
    ] = False
    lookahead: Annotated[
        int,
        Parameter(
            "Requests whose sharing is looked for together; the next so many are read when half "
            "of the last have been prefilled.",
            ge=1,
        ),
    ] = LOOKAHEAD
    first_rows: Annotated[
        int | None,
        Parameter(
            "Sequences that decode together on a CPU until the first sample of a job has ended; "
            "None is as many as later.",
            ge=1,
        ),
    ] = None
    arriving: Annotated[
        bool,
        Parameter(
            "Whether requests come one by one for as long as the engine lives. On a GPU the CUDA "
            "graphs of all numbers of sequences are then captured before the first one."
        ),
    ] = False
    state_slots: Annotated[
        int | None,
        Parameter(
            "Slots for the states of nodes and rows, where a model keeps any; None is two a row, "
            "in up to half of the memory.",
            ge=1,
        ),
    ] = None

    @property
    def compiles(self) -> bool:
        """Whether a GPU's code is compiled before the first token, as far as there is any."""
        return self.compile is not False

    def __post_init__(self) -> None:
        check(self, _DECLARED.values())
        if self.gpu_memory_utilization is not None and self.kv_cache_memory is not None:
            raise UsageError(
                "kv_cache_memory and gpu_memory_utilization both say how large the KV cache is: "
                "give one of them"
            )


_DECLARED = declared(EngineConfig)


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
    waited_seconds: in which the host had nothing to do but to wait for the GPU; where they are few,
    it is the GPU that waits.
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
    waited_seconds: float = 0.0
    steps_by_levels: dict[str, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    states_total: int = 0
    peak_states: int = 0
    mixers: str | None = None
    device: str | None = None
    engines: int = 0
    slow_attention: str | None = None
    slow_steps: int = 0
