"""From batches to tokens: the only place that turns numbers into tensors.

What a decoding step needs is kept on the device between steps: the last tokens, positions, tables
and sampling parameters of every row. A step sends only what changed, feeds the tokens that the
step before it drew, and never waits for the host. On a GPU the whole step (forward, KV store,
sampling, position advance) is one CUDA graph for each size of batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from sharegen.engine.core.batch import (
    Batch,
    DecodeBatch,
    Drawing,
    Int32,
    OutputRows,
    PrefillBatch,
)
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.execute.agreement import Agreement
from sharegen.engine.execute.back_end import Attention, Slots
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.graphs import StepGraphs
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.room import Room
from sharegen.engine.execute.row_states import RowStates, StatesOfChunks
from sharegen.engine.execute.states import StatePool
from sharegen.engine.execute.swap_space import SwapSpace
from sharegen.engine.model.interface import active
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.sample.processed import processed_top_logprobs
from sharegen.engine.sample.sampler import (
    Features,
    SamplingState,
    ranks,
    sample,
    token_logprobs,
    top_logprobs,
)
from sharegen.kernels.layout import FOLLOWING
from sharegen.kernels.transfer import send

_LEAST_COMPILED = 2  # tokens, or rows: for one the compiler makes code of its own, in mid-job


@dataclass(frozen=True)
class FilledRows:
    """What a step reads that fills in outputs of preempted samples: each field as a runner has it
    for the rows that decode.
    """

    tokens: torch.Tensor
    position: torch.Tensor
    prefix_length: torch.Tensor
    block_tables: torch.Tensor


class Runner:
    """Runs batches of one model over one KV cache, and over one pool of states if it keeps any.

    Args:
        model: the model, or this rank's shard of one.
        cache: the KV cache that the batches' slots and blocks refer to.
        attention: the back end that computes attention over it.
        max_sequences: rows that the tables have, before padding.
        padded: says how many rows a batch of n rows is run with.
        tokenizer: turns strings that a request bars into tokens.
        graphs: captures decoding steps as CUDA graphs; None to run them eagerly.
        room: agrees between ranks whether a step may take memory; None for one rank.
        agreement: compares every step across the ranks; None not to.
        states: the pool of mixers' states, where the model keeps any.
        swap_space: host memory that blocks are swapped to and from, if there is any.
        processed_logprobs: whether log-probabilities are of the distribution drawn from.
        arriving: as `SamplingState` takes it.
    """

    def __init__(
        self,
        model: LoadedModel,
        cache: KVCache,
        attention: Attention,
        *,
        max_sequences: int,
        padded: Callable[[int], int],
        tokenizer: Any,
        graphs: StepGraphs | None = None,
        room: Room | None = None,
        agreement: Agreement | None = None,
        states: StatePool | None = None,
        swap_space: SwapSpace | None = None,
        processed_logprobs: bool = False,
        arriving: bool = False,
    ) -> None:
        self.model = model
        self.cache = cache
        self.attention = attention
        self.padded = padded
        self.device = model.device
        self._send = partial(send, model.device)
        rows = padded(max_sequences)
        self._scratch_slot = cache.scratch_block * cache.block_size  # of the rows' blocks
        self.tokens = self._full((rows,), 0, torch.int64)
        self.position = self._full((rows,), -1, torch.int32)
        self.last_position = self._full((rows,), -1, torch.int32)
        self.prefix_length = self._full((rows,), 0, torch.int32)
        self.block_tables = self._full((rows, 1), cache.scratch_block, torch.int32)
        self.state = SamplingState(
            rows, model.vocab_size, self.device,
            eos_token_ids=model.eos_token_ids, tokenizer=tokenizer, processed=processed_logprobs,
            steady=model.steady, arriving=arriving,
        )  # fmt: skip
        self.states = RowStates(states, rows) if states is not None else None
        self.graphs = graphs
        self._room = room
        self._agreement = agreement
        self._swap_space = swap_space
        self._filled: FilledRows | None = None  # as wide as was needed by now

    @property
    def shared_levels(self) -> tuple[int, ...]:
        """Levels of the tree whose nodes the last decoding step read once for all rows."""
        return self.attention.shared_levels

    def run(self, batch: Batch) -> Drawn:
        """Launch one step; what it draws may be waited for."""
        return self.prefill(batch) if isinstance(batch, PrefillBatch) else self.decode(batch)

    @torch.inference_mode()
    def prefill(self, batch: PrefillBatch) -> Drawn:
        """Compute the KV of prompt chunks; draw the first tokens of the batch's drawings."""
        count = len(batch.token_ids)
        if self._room is not None:
            self._room.for_prefill(count)
        if self._swap_space is not None:
            self._swap_space.begin(batch.swaps)
        # On a CPU rows are padded, so that their arithmetic is that of any other batch; on a GPU,
        # where that is asked for, to numbers for which products were tried.
        is_steady = self.device.type == "cpu" or self.model.steady
        least = self.padded(count) if is_steady else _LEAST_COMPILED
        padding = max(0, least - count)
        if self._agreement is not None:
            self._agreement.check(batch=batch)
        if batch.rows is not None:
            return self._fill(batch, batch.rows)
        wanted = batch.logit_rows
        if batch.logprobs is not None:
            wanted = np.concatenate([wanted, batch.logprobs.rows])
        missing = max(_LEAST_COMPILED, self.padded(len(wanted))) - len(wanted)
        full = np.where(batch.fp8, -1, batch.slots)
        fp8 = np.where(batch.fp8, batch.slots, -1)
        ids, position, logit_rows, *slots = self._send(
            np.pad(batch.token_ids, (0, padding)),
            np.pad(batch.positions, (0, padding)).astype(np.int32),
            np.pad(wanted, (0, missing)),
            np.pad(full, (0, padding), constant_values=self.cache.scratch_slot),
            *([np.pad(fp8, (0, padding), constant_values=-1)] if batch.fp8.any() else []),
        )
        chunk_starts = batch.chunk_starts + [count + padding] * (padding > 0)
        context = self.attention.prefill(batch.layout, chunk_starts, position, Slots(*slots))
        states = None
        if self.states is not None:
            states = StatesOfChunks(
                self.states.pool, batch.mixed, batch.positions, self._send, self.model.steady
            )
        with active(context, states):
            logits = self.model.forward(ids, position, logit_rows)
        return self._draw_first(batch, logits, self._prompt_logprobs(batch, logits))

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> Drawn:
        """Compute and draw one token for every row of the batch."""
        if self._swap_space is not None:
            self._swap_space.begin(batch.swaps)
        self._apply(batch)
        rows = batch.size
        features = self.state.features(batch.num_rows)
        if self._agreement is not None:
            self._agreement.check(
                batch=batch, tokens=self.tokens[:rows], positions=self.position[:rows],
                kind=(features, self.state.num_end_ids, self.attention.variant),
            )  # fmt: skip

        if self.graphs is None:
            return Drawn(*self._step(rows, features))
        kind = (
            features, self.state.num_end_ids, self.block_tables.shape[1], self.attention.variant,
        )  # fmt: skip
        outputs = self.graphs.run(
            rows,
            kind,
            self.attention.generation,
            lambda count: self._step(count, features),
            changing=[self.tokens, self.position, *(self.states.changing if self.states else [])],
            set_aside=self.states.set_aside if self.states is not None else None,
        )
        return Drawn(*outputs)

    def _fill(self, batch: PrefillBatch, own: OutputRows) -> Drawn:
        """Compute the KV of outputs by what a decoding step of such rows computes."""
        place = _apart(batch.chunk_starts)
        count, most = self.padded(int(place[-1]) + 1), len(self.tokens)
        width = own.block_tables.shape[1]
        if self._filled is None or self._filled.block_tables.shape[1] < width:
            self._filled = FilledRows(
                self._full((most,), 0, torch.int64),
                self._full((most,), -1, torch.int32),
                self._full((most,), 0, torch.int32),
                self._full((most, width), self.cache.scratch_block, torch.int32),
            )

        def placed(values: np.ndarray, elsewhere: int) -> np.ndarray:
            found = np.full((most, *values.shape[1:]), elsewhere, values.dtype)
            found[place] = values
            return found

        tokens, position, prefix_length, tables = self._send(
            placed(batch.token_ids, 0),
            placed(batch.positions.astype(np.int32), -1),
            placed(own.prefix_length, 0),
            placed(own.block_tables, self.cache.scratch_block),
        )
        self._filled.tokens.copy_(tokens)
        self._filled.position.copy_(position)
        self._filled.prefix_length.copy_(prefix_length)
        self._filled.block_tables[:, :width] = tables
        self.attention.update(replace(batch.layout, order=place[batch.layout.order]))
        step = partial(self._fill_step, self._filled)
        if self.graphs is None:
            step(count)
            return _nothing()
        kind = ("fill", self._filled.block_tables.shape[1], self.attention.variant)
        self.graphs.run(count, kind, self.attention.generation, step, changing=[])
        return _nothing()

    def _fill_step(self, filled: FilledRows, count: int) -> tuple[torch.Tensor, ...]:
        """Run the layers for these rows, on the device alone, as `_step` does."""
        position, prefix_length = filled.position[:count], filled.prefix_length[:count]
        tables = filled.block_tables[:count]
        output = (position - prefix_length).clamp(min=0).long()
        slots = self._slots(tables, position, output)
        where = Slots(None, slots) if self.cache.blocks_per_full > 1 else Slots(slots)
        context = self.attention.decode(where, tables, prefix_length, position, following=True)
        unread = torch.arange(_LEAST_COMPILED, device=self.device)  # of the logits some have to be
        with active(context, None):
            at = position.clamp(min=0).long()
            self.model.forward(filled.tokens[:count], at, unread, every=True)
        return ()

    def spare_memory(self) -> None:
        """Give back what is held for speed alone: captured graphs, memory that was freed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # a graph may still run
        if self.graphs is not None:
            self.graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _step(self, count: int, features: Features) -> tuple[torch.Tensor, ...]:
        """Run the whole decoding step on the device: no host visit, fixed addresses.

        A row whose token ends it (EOS, stop token, limit), or whose logits are no distribution, has
        position -1 from then on: the steps launched before the host knows write to the scratch
        block and attend to nothing of its own.
        """
        rows = slice(0, count)
        position, prefix_length = self.position[rows], self.prefix_length[rows]
        block_tables = self.block_tables[rows]
        output = (position - prefix_length).clamp(min=0).long()  # index of the token that goes in
        slots = self._slots(block_tables, position, output)
        where = Slots(None, slots) if self.cache.blocks_per_full > 1 else Slots(slots)
        context = self.attention.decode(where, block_tables, prefix_length, position)
        every = torch.arange(count, device=self.device)
        states = None
        if self.states is not None:  # beams, which ask for likeliest tokens, may share a state
            in_place = features.top_logprobs < 0
            states = self.states.of_step(position, output, in_place)
        with active(context, states):
            at = position.clamp(min=0).long()
            logits = self.model.forward(self.tokens[rows], at, every, every=True)
        if self.states is not None and states is not None:
            states.end()
            self.states.advance(position)
        history = None
        if features.looks_back:
            history = self._history(slots, block_tables, output)
        tokens, logprobs = sample(
            logits, self.state, output + 1, rows=rows, history=history, features=features
        )
        self.tokens[rows] = tokens
        ended = self.state.is_end(tokens, rows)
        goes_on = ~ended & (position < self.last_position[rows]) & ~logprobs.isnan()
        self.position[rows] = torch.where(goes_on & (position >= 0), position + 1, -1)
        if self.model.ranks is not None:
            self._go_on_as_rank_0(self.model.ranks, rows)
        if features.processed and features.top_logprobs >= 0:
            top = processed_top_logprobs(
                logits, self.state, output + 1, tokens, logprobs, features.top_logprobs,
                rows=rows, history=history, features=features,
            )  # fmt: skip
            return tokens, logprobs, ended, *top
        return tokens, logprobs, ended, *_top(logits, tokens, logprobs, features.top_logprobs)

    def _slots(
        self, block_tables: torch.Tensor, position: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor:
        """Return where the KV of each row's input goes: [rows]."""
        size = self.cache.block_size
        blocks = block_tables.gather(1, (output // size)[:, None])[:, 0]
        return torch.where(position >= 0, blocks * size + output % size, self._scratch_slot)

    def _go_on_as_rank_0(self, ranks: Ranks, rows: slice) -> None:
        """The next step begins with what rank 0 drew: others may round, and draw, differently."""
        begin = ranks.broadcast(torch.stack((self.tokens[rows], self.position[rows].long())))
        self.tokens[rows] = begin[0]
        self.position[rows] = begin[1].to(torch.int32)

    def _history(
        self, slots: torch.Tensor, block_tables: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor:
        """Store the tokens that go in, and return each row's outputs with its own.

        Outputs are kept where their keys are, so that they move, grow and go with these.

        Returns:
            [rows, longest] int32, -1 beyond a row's end.
        """
        tokens = self.cache.tokens
        tokens.view(-1).index_copy_(0, slots, self.tokens[: len(slots)].to(tokens.dtype))
        history = tokens.index_select(0, block_tables.flatten()).view(len(slots), -1)
        index = torch.arange(history.shape[1], device=self.device)
        return history.masked_fill_(index > output[:, None], -1)

    def _apply(self, batch: DecodeBatch) -> None:
        """Bring the device's tables up to date."""
        width = batch.block_tables.shape[1]
        missing = width - self.block_tables.shape[1]
        if missing > 0:
            self.block_tables = torch.nn.functional.pad(
                self.block_tables, (0, missing), value=self.cache.scratch_block
            )
        places = (
            batch.moves, batch.changed, batch.copies, batch.growth, batch.forced, batch.resting,
        )  # fmt: skip
        values = (batch.block_tables, batch.prefix_length, batch.position, batch.last_position)
        sent = self._send(*(place.astype(np.int64) for place in places), *values)
        moves, changed, copies, growth, forced, resting = sent[: len(places)]
        tables, prefix_length, position, last_position = sent[len(places) :]
        if len(moves):
            source, target = moves.unbind(1)
            self.tokens[target] = self.tokens[source]
            if self.states is not None:
                self.states.move(source, target)
            self.state.move_rows(batch.moves[:, 0].tolist(), batch.moves[:, 1].tolist())
        if len(changed):
            self.block_tables[changed] = tables
            self.prefix_length[changed] = prefix_length
            self.position[changed] = position
            self.last_position[changed] = last_position
            if self.states is not None:
                self.states.change(changed, batch.states, self._send)
        if len(batch.started):
            self.state.set_rows(batch.started.tolist(), *_columns(batch.drawings))
        if len(copies):
            self.cache.copy_blocks(*copies.unbind(1))
        if len(growth):
            row, column, block = growth.unbind(1)
            self.block_tables[row, column] = block.to(torch.int32)
        if len(forced):
            row, token, at = forced.unbind(1)
            self.tokens[row] = token
            self.position[row] = at.to(torch.int32)  # also where the token drawn was an end
        if len(resting):
            self.position[resting] = -1  # forced again when it goes on
        if batch.masks is not None:
            self.state.masks.write(batch.masks.places, batch.masks.masks[batch.masks.which])
        if batch.layout is not None:
            self.attention.update(batch.layout)

    def _prompt_logprobs(self, batch: PrefillBatch, logits: torch.Tensor) -> Drawn | None:
        if batch.logprobs is None:
            return None
        [tokens] = self._send(batch.logprobs.tokens)
        first = len(batch.logit_rows)
        rows = torch.arange(first, first + len(tokens), device=self.device)
        chosen, ids, best = token_logprobs(logits, tokens, batch.logprobs.top, rows)
        return Drawn(tokens, chosen, None, ranks(logits, tokens, rows), ids, best)

    def _draw_first(self, batch: PrefillBatch, logits: torch.Tensor, prompt: Drawn | None) -> Drawn:
        drawings = batch.drawings
        if not drawings:
            return _nothing(prompt)
        [which] = self._send(batch.prompts)
        drawn, asked = [], -1
        states = []
        most = len(self.tokens)  # at a time: what memory was kept for
        for part in (slice(i, i + most) for i in range(0, len(drawings), most)):
            state = self.state.fresh(*_columns(drawings[part]))
            if batch.masks is not None:
                at = batch.masks.places
                mine = (at >= part.start) & (at < part.stop)
                masks = batch.masks.masks[batch.masks.which[mine]]
                state.masks.write(at[mine] - part.start, masks)
            zeros = torch.zeros(state.max_rows, dtype=torch.int64, device=self.device)
            first, of_first = sample(logits, state, zeros, logit_rows=which[part])
            drawn.append((first, of_first, state.is_end(first, slice(0, len(first)))))
            asked = max(asked, state.features().top_logprobs)
            states.append((state, part))
        tokens, logprobs, ended = (torch.cat(column) for column in zip(*drawn, strict=True))
        if self.state.processed and asked >= 0:
            found = [
                processed_top_logprobs(
                    logits, state, tokens[part] * 0, tokens[part], logprobs[part], asked,
                    logit_rows=which[part],
                )
                for state, part in states
            ]  # fmt: skip
            top = tuple(torch.cat(column) for column in zip(*found, strict=True))
        else:
            top = _top(logits, tokens, logprobs, asked, which)
        return Drawn(tokens, logprobs, ended, *top, prompt=prompt)

    def _full(self, shape: tuple[int, ...], value: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)


def _apart(starts: list[int]) -> Int32:
    """The row of each token, where each chunk begins at a multiple of FOLLOWING rows: [T]."""
    counts = np.diff(starts)
    room = -(-counts // FOLLOWING) * FOLLOWING
    moved = np.cumsum(room) - room - np.array(starts[:-1])
    place: Int32 = (np.arange(starts[-1]) + np.repeat(moved, counts)).astype(np.int32)
    return place


def _nothing(prompt: Drawn | None = None) -> Drawn:
    """Return what a step gives that draws nothing. prompt: what it says of prompt tokens."""
    empty = torch.empty(0)
    return Drawn(empty.long(), empty, empty.bool(), prompt=prompt)


def _columns(
    drawings: list[Drawing],
) -> tuple[list[SamplingParams], list[int], list[Int32], list[int]]:
    """Parameters, keys, prompts and widths of beam searches, as the sampling state takes them."""
    params, keys = [d.params for d in drawings], [d.key for d in drawings]
    return params, keys, [d.prompt for d in drawings], [d.beam_width for d in drawings]


def _top(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
    count: int,
    logit_rows: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return token ranks and the `count` likeliest tokens of each place; nothing where none asked
    (-1).
    """
    if count < 0:
        return ()
    places = ranks(logits, tokens, logit_rows)
    return places, *top_logprobs(logits, tokens, logprobs, count, logit_rows)
