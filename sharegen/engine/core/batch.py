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

    key: of the sample's random stream (`random_key.row_key`). prompt: int32, the prompt's tokens
    where the params look at them (`SamplingParams.reads_prompt`), else empty. beam_width: of the
    beam search that the row is part of, 0 where it is drawn from by itself.
    """

    params: SamplingParams
    key: int
    prompt: Int32
    beam_width: int = 0


@dataclass(frozen=True)
class TokenMasks:
    """Which tokens some places of a batch may draw.

    places: [n] of the drawings of a prefill batch, or rows; which: [n] the mask of each. masks:
    [m, ceil(V / 8)], of which bit j of byte i is set where token 8 * i + j may be drawn.
    """

    places: Int64
    which: Int64
    masks: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class WantedLogprobs:
    """What a prefill batch is to say about prompt tokens.

    rows: [n] rows of the batch; tokens: [n] the prompt token that follows each one; top: how many
    of the likeliest tokens.
    """

    rows: Int64
    tokens: Int64
    top: int


@dataclass(frozen=True)
class MixedChunks:
    """Chunks of equal length that mixers take as one batch of sequences.

    starts: [n] first rows; length: in rows. read, write: [n] slots of the states before and after.
    """

    starts: Int64
    length: int
    read: Int64
    write: Int64


@dataclass(frozen=True)
class Swaps:
    """Blocks of samples' own tokens that go to host memory before a step, and that come back.

    out: [n, 2] (block, slot of the host), of blocks that the step itself may write to. back: [n, 2]
    (slot, block), after these; to blocks that only later steps read.
    """

    out: Int64
    back: Int64


@dataclass(frozen=True)
class PrefillBatch:
    """Chunks of prompt nodes that are packed into one batch, parents before children.

    token_ids, positions, slots: [T] the tokens, their positions and where their KV goes; fp8:
    [T] whether that is a slot of FP8 blocks.
    chunk_starts: [num_chunks + 1] rows of the chunks. layout: what the rows attend to besides
    their own chunk.
    logit_rows: [num_prompts] rows of the last tokens of prompts. drawings: [num_samples] the
    samples whose first tokens are drawn, and prompts: [num_samples] from which of logit_rows.
    logprobs: what is wanted of the prompts' own tokens, or None. masks: of the drawings that have
    one, or None.
    mixed: all chunks, in an order in which mixers find the states that they go on from; empty for a
    model that keeps none.
    swaps: between the KV cache and host memory, or None.
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


@dataclass(frozen=True)
class DecodeBatch:
    """One token for every running sequence; rows are places in the batch.

    num_rows: rows up to the last live one.
    moves: [n, 2] (from, to) rows to copy first. changed: [n] rows whose tables, lengths or sequence
    are new, empty rows included; block_tables [n, max_blocks], prefix_length, position and
    last_position (of the last input that the row may have) [n] are theirs, and states [n, 3], the
    slots that the next step reads their states from and writes them to, and those of the states
    of their prompts.
    started: [n] rows whose sequence has just joined, and drawings: [n] how theirs are drawn.
    copies: [n, 2] (from, to) blocks of samples' own tokens to copy: two beams go on from one, and
    each writes on behind it.
    growth: [n, 3] (row, column, block) entries added to the block tables of other rows.
    forced: [n, 3] (row, token, position) inputs that replace the token drawn last: a sequence that
    just joined, replays what it had drawn before it was preempted, or sat out the step before.
    resting: [n] rows that sit this step out.
    layout: the shared nodes, or None where they are those of the step before.
    masks: of the rows that have one, or None.
    swaps: between the KV cache and host memory, or None.
    """

    num_rows: int
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
