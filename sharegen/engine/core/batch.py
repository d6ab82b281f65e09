"""One step's work as data: what the scheduler hands to the runner.

Numbers, and nothing that is alive: numpy arrays and small frozen dataclasses. So a batch can be
written down, sent to another process and run again, and the runner knows neither sequences nor the
tree. Whom a batch is for, the scheduler remembers (`schedule/step.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sharegen.engine.core.request import SamplingParams
from sharegen.kernels.layout import SharedLayout

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Drawing:
    """How the tokens of one sample are drawn.

    Args:
        params: the sample's sampling parameters.
        key: the key of its random stream (`random_key.row_key`).
        prompt: the prompt's tokens where the params look at them (`SamplingParams.reads_prompt`),
            else empty.
        beam_width: of the beam search that the row is part of, 0 without one.
    """

    params: SamplingParams
    key: int
    prompt: Int32
    beam_width: int = 0


@dataclass(frozen=True)
class TokenMasks:
    """Which tokens some places of a batch may draw.

    Args:
        places: [n], drawings of a prefill batch, or rows of a decoding step.
        which: [n], the mask of each place.
        masks: [m, ceil(V / 8)]; bit j of byte i is set where token 8 * i + j may be drawn.
    """

    places: Int64
    which: Int64
    masks: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class WantedLogprobs:
    """What a prefill batch is to say about prompt tokens.

    Args:
        rows: [n], rows of the batch.
        tokens: [n], the prompt token that follows each of the rows.
        top: how many of the likeliest tokens are wanted.
    """

    rows: Int64
    tokens: Int64
    top: int


@dataclass(frozen=True)
class MixedChunks:
    """Chunks of equal length that mixers take as one batch of sequences.

    Args:
        starts: [n], the first row of each chunk.
        length: rows of a chunk.
        read, write: [n], the slots of the states before and after.
    """

    starts: Int64
    length: int
    read: Int64
    write: Int64


@dataclass(frozen=True)
class Swaps:
    """Blocks of samples' own tokens that go to host memory before a step, and that come back.

    Args:
        out: [n, 2] (block, slot of the host); the step itself may write to these blocks.
        back: [n, 2] (slot, block), copied after these, to blocks that only later steps read.
    """

    out: Int64
    back: Int64


@dataclass(frozen=True)
class OutputRows:
    """What a prefill batch's tokens are as rows of a decoding step: outputs of preempted samples.

    A row's keys and values are read by the rows behind it in the same step. So all that is added up
    for a token is what the step did that fed it first.

    Args:
        prefix_length: [T], tokens of the sample's prompt.
        block_tables: [T, max_blocks], the blocks of the sample's own tokens.
    """

    prefix_length: Int32
    block_tables: Int32


FIXED_CHUNK = 1024
"""Tokens of a chunk where its place may not depend on how large batches are, and so of a batch at
least."""

FIXED_CHUNK_ON_CPU = 256
"""The same on a CPU: no more than a batch may shrink to where steps find no memory."""


@dataclass(frozen=True)
class PrefillBatch:
    """Chunks of prompt nodes that are packed into one batch, parents before children.

    Args:
        token_ids: [T].
        positions: [T], of each token in its prompt.
        slots: [T], where the tokens' KV goes.
        fp8: [T], whether that is a slot of FP8 blocks, or of those of latents.
        chunk_starts: [num_chunks + 1], where each chunk begins.
        layout: what the rows attend to besides their own chunk.
        logit_rows: [num_prompts], rows of the last tokens of prompts.
        drawings: [num_samples], the samples whose first tokens are drawn.
        prompts: [num_samples], from which of logit_rows each is drawn.
        logprobs: what is wanted of the prompts' own tokens, or None.
        mixed: all chunks, in an order in which mixers find the states that they go on from; empty
            for a model that keeps none.
        masks: masks of the drawings that have one, or None.
        swaps: copies between the KV cache and host memory, or None.
        rows: where the tokens are outputs that go through a decoding step again; else None.
    """

    token_ids: Int64
    positions: Int64
    slots: Int64
    fp8: npt.NDArray[np.bool_]
    chunk_starts: list[int]
    layout: SharedLayout
    logit_rows: Int64
    drawings: list[Drawing]
    prompts: Int64
    logprobs: WantedLogprobs | None
    mixed: list[MixedChunks]
    masks: TokenMasks | None = None
    swaps: Swaps | None = None
    rows: OutputRows | None = None


@dataclass(frozen=True)
class DecodeBatch:
    """A step of one token for every running sequence; rows are places in the batch.

    Each n below is another one.

    Args:
        num_rows: rows up to the last live one.
        size: rows that the step is run with, the others being dead.
        moves: [n, 2] (from, to), rows to copy first.
        changed: [n], rows whose tables, lengths or sequence are new, empty rows included; the next
            five have a row for each of them.
        block_tables: [n, max_blocks], the blocks of the row's own tokens.
        prefix_length: [n], tokens of the prompt.
        position: [n], of the row's next input.
        last_position: [n], of the last input that the row may have.
        states: [n, 3], the slots that the next step reads the row's states from and writes them
            to, and the slot of the states of its prompt.
        started: [n], rows whose sequence has just joined.
        drawings: [n], how the tokens of these are drawn.
        copies: [n, 2] (from, to), blocks of samples' own tokens to copy: two beams go on from one,
            and each writes on behind it.
        growth: [n, 3] (row, column, block), entries added to the block tables of other rows.
        forced: [n, 3] (row, token, position), inputs that replace the token drawn last: a sequence
            that just joined, replays what it had drawn before it was preempted, or sat out the
            step before.
        resting: [n], rows that sit this step out.
        layout: the shared nodes, or None where they are those of the step before.
        masks: masks of the rows that have one, or None.
        swaps: copies between the KV cache and host memory, or None.
    """

    num_rows: int
    size: int
    moves: Int32
    changed: Int32
    block_tables: Int32
    prefix_length: Int32
    position: Int32
    last_position: Int32
    states: Int32
    started: Int32
    drawings: list[Drawing]
    copies: Int32
    growth: Int32
    forced: Int32
    resting: Int32
    layout: SharedLayout | None
    masks: TokenMasks | None = None
    swaps: Swaps | None = None


Batch = PrefillBatch | DecodeBatch
