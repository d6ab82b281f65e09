"""How an engine starts: a scheduler made to measure, and small jobs that warm the device up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sharegen.common.extras import install
from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.config import EngineConfig, EngineStats
from sharegen.engine.core.batch import FIXED_CHUNK, FIXED_CHUNK_ON_CPU
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.execute.padding import all_sizes
from sharegen.engine.model.states.mixers import TORCH_CODE
from sharegen.engine.prepared import Prepared
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.swapping import SwapCost
from sharegen.errors import SharegenError
from sharegen.kernels.cost import Decided

ATTENTION_MODES = (Decided(every=0), Decided(every=1), Decided(every=2))
"""How the tree may be read: shared, per sequence, or both. The kernels differ between these."""

_LEAST_WIDTH = 128
"""Blocks of the tables of rows that arrive: 2,048 tokens of the usual blocks, which few samples
pass."""

_PATIENCE = 16
"""Steps: about what it takes to make a batch smaller, with a graph that is captured for it."""

_HEAD = 8
"""Blocks that all prompts of a rehearsal begin with."""


def scheduler_for(prepared: Prepared, config: EngineConfig, tree: PrefixTree | None) -> Scheduler:
    """Make a scheduler with nothing to do, for the blocks, slots and batches of what lies on the
    device.
    """
    on_gpu = prepared.model.device.type == "cuda"
    cache = prepared.cache
    is_plain = not cache.fp8 and not prepared.model.mixers
    # Prefill rounds otherwise than decoding does: on a CPU in float32 bits would differ. And it
    # reads what it puts into FP8 blocks as it was before that. Rows of a step give the bits.
    fills_rows = config.deterministic and not prepared.model.mixers
    one_pass = prepared.chunk_tokens if on_gpu and is_plain and not config.deterministic else 0
    one_pass = prepared.model.context_length if fills_rows else one_pass
    # A prompt's bits depend on where it is cut. On a CPU larger chunks take less time where prompts
    # have thousands of tokens, and smaller ones where they have fewer.
    cut = FIXED_CHUNK if on_gpu else FIXED_CHUNK_ON_CPU
    return Scheduler(
        BlockPool(
            prepared.num_blocks, config.block_size, cache.blocks_per_full, prepared.blocks.readers
        ),
        max_sequences=prepared.max_sequences,
        context_length=prepared.model.context_length,
        chunk_tokens=prepared.chunk_tokens,
        cut_tokens=cut if config.deterministic else None,
        # On a CPU a small batch takes as long a token as few rows do: it is to be a step's size.
        ahead_tokens=2048 if on_gpu else prepared.max_sequences,
        # On a GPU the first tokens of prompts are there some steps after their batch was launched.
        ahead_steps=3 if on_gpu else 0,
        padded=prepared.padded,
        scratch_block=cache.scratch_block,
        seed=config.seed,
        tree=tree,
        states=StateSlots(prepared.num_slots),
        mix_together=on_gpu,
        host_slots=0 if prepared.swap_space is None else prepared.swap_space.num_slots,
        swap_cost=SwapCost(*prepared.swap_seconds),
        one_pass=one_pass,
        fills_rows=fills_rows,
        deterministic=config.deterministic and on_gpu,
        forks_anew=config.deterministic,
        first_rows=None if on_gpu else config.first_rows,
        least_width=_LEAST_WIDTH if on_gpu and config.arriving else None,
        # Where requests arrive, the graphs of all sizes are there, and few rows must not be slow.
        patience=_PATIENCE if on_gpu and not config.arriving else 0,
        streams=config.arriving,
    )


def warm_up(
    generate: Callable[[list[Request]], Iterable[Completion]],
    forget: Callable[[], None],
    max_sequences: int,
    block_size: int,
) -> None:
    """Run small jobs of full and of few rows: no kernel is compiled during a real one.

    forget: what ends all that was shared, after each.
    """
    size = 4 * block_size
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
    try:
        for rows in (max_sequences, 2):
            samples = range(max(1, rows // 2))
            requests = [Request(i, [0] * size + [i] * size, params, samples) for i in (1, 2)]
            for _ in generate(requests):
                pass
            forget()
    except SharegenError:
        pass  # too little memory or context for it: a real job will say so


def rehearse(
    generate: Callable[[list[Request]], Iterable[Completion]],
    forget: Callable[[], None],
    padded: Callable[[int], int],
    max_sequences: int,
    block_size: int,
) -> None:
    """Run a small job of each number of rows that steps are run with, the smallest first.

    A step's graph is captured when it is first needed, while all wait: so that none is during the
    first load. The largest last: while there is a larger one, it serves for a while.

    padded: says how many rows a batch is run with; forget: as for `warm_up`.
    """
    params = SamplingParams(temperature=1.0, max_tokens=3, ignore_eos=True)
    try:
        for size in all_sizes(padded, max_sequences):
            rows = min(max(1, size - 1), max_sequences)  # a full one may be of the next tile
            halves = (range(rows - rows // 2), range(rows // 2))
            requests = [
                Request(key, [0] * (_HEAD * block_size) + [key] * block_size, params, samples)
                for key, samples in enumerate(halves)
                if samples
            ]
            for _ in generate(requests):
                pass
            forget()
    except SharegenError:
        pass  # too little memory or context for it: a real load will say so


def warn_of_slow_parts(stats: EngineStats, on_gpu: bool) -> None:
    """Warn whoever makes the engine of what runs without kernels."""
    if stats.slow_attention is not None:
        warnings.warn(
            "plain torch computes all attention, slowly and without CUDA graphs, since no kernel "
            f"serves this model: {stats.slow_attention}",
            stacklevel=4,
        )
    if stats.mixers == TORCH_CODE and on_gpu:
        warnings.warn(
            f"the model's mixers run in {TORCH_CODE}, which is slow: for kernels "
            f"{install('hybrid')}",
            stacklevel=4,
        )


def warn_of_an_end_that_is_none(tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Say it where the model's configs do not name what its tokenizer ends a text with."""
    end = getattr(tokenizer, "eos_token_id", None)
    if isinstance(end, int) and end not in eos_token_ids:
        known = f"none of the model's ends ({', '.join(map(str, eos_token_ids))})"
        warnings.warn(
            f"the tokenizer's eos_token {tokenizer.eos_token!r} ({end}) is "
            f"{known if eos_token_ids else 'no end to the model'}: samples go on beyond it, as in "
            f"generate(); stop_token_ids [{end}] ends them there",
            stacklevel=3,
        )
