"""From batches to tokens: the only place that turns numbers into tensors.

What a decoding step needs is kept on the device between steps: the last tokens, positions, tables
and sampling parameters of every row. A step sends only what changed, feeds the tokens that the
step before it drew, and never waits for the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharegen.engine.attention import DecodeAttention, PrefillAttention, active
from sharegen.engine.batch import DecodeBatch, PrefillBatch
from sharegen.engine.kv_cache import KVCache
from sharegen.engine.model import LoadedModel
from sharegen.engine.sampling import SamplingState, row_key, sample, token_logprobs
from sharegen.engine.sequence import Group
from sharegen.kernels.reference import ReferencePlan, SuffixPlan

_LEAST_ROWS = 16  # a matrix product treats few rows, and an odd end, apart and rounds otherwise


def padded_rows(count: int) -> int:
    """How many rows a batch of `count` is run with."""
    return max(_LEAST_ROWS, -(-count // _LEAST_ROWS) * _LEAST_ROWS)


@dataclass(frozen=True)
class Drawn:
    """Tokens on their way to the host.

    tokens, logprobs: [n], in the batch's order. top_ids, top_logprobs: [n, k] the likeliest tokens
    of each place, where some sequence wants them.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None

    def get(self) -> tuple[list[int], list[float]]:
        """Wait for the step and return its tokens and log-probabilities."""
        return self.tokens.tolist(), self.logprobs.tolist()

    def get_top(self) -> list[dict[int, float]]:
        """The likeliest tokens of each place, best first."""
        assert self.top_ids is not None and self.top_logprobs is not None
        pairs = zip(self.top_ids.tolist(), self.top_logprobs.tolist(), strict=True)
        return [dict(zip(ids, logprobs, strict=True)) for ids, logprobs in pairs]


class Runner:
    """Runs batches of one model over one KV cache.

    max_sequences: rows. seed: of requests that bring none.
    """

    def __init__(
        self, model: LoadedModel, cache: KVCache, max_sequences: int, tokenizer: Any, seed: int
    ) -> None:
        self.model = model
        self.cache = cache
        self.seed = seed
        self.device = model.device
        rows = padded_rows(max_sequences)
        self.tokens = self._full((rows,), 0)
        self.position = self._full((rows,), -1)
        self.prefix_length = self._full((rows,), 0)
        self.block_tables = self._full((rows, 1), cache.scratch_block)
        self.history: torch.Tensor | None = None  # [rows, outputs], kept while some row needs it
        self.plan: ReferencePlan | None = None
        self.state = SamplingState(
            rows, model.vocab_size, self.device,
            eos_token_ids=model.eos_token_ids, tokenizer=tokenizer,
        )  # fmt: skip

    @torch.inference_mode()
    def prefill(self, batch: PrefillBatch) -> Drawn:
        """Compute the KV of prompt chunks; draw the first tokens of the groups' samples.

        The draws are in the order of the groups, and of the samples within each.
        """
        count = len(batch.token_ids)
        padding = padded_rows(count) - count
        ids = self._send(np.pad(batch.token_ids, (0, padding)))
        position = self._send(np.pad(batch.positions, (0, padding)))
        scratch = self.cache.scratch_block * self.cache.block_size
        slots = self._send(np.pad(batch.slots, (0, padding), constant_values=scratch))
        chunk_starts = batch.chunk_starts + [count + padding] * (padding > 0)
        context = PrefillAttention(
            layers=self.model.layers,
            cache=self.cache,
            plan=ReferencePlan(batch.layout, self.cache.block_size, self.device),
            slots=slots,
            chunk_starts=chunk_starts,
            position=position,
        )
        # Always some rows of logits, and as many as keep their arithmetic that of any other batch.
        wanted = batch.logit_rows
        missing = padded_rows(len(wanted)) - len(wanted)
        with active(context):
            logits = self.model.forward(ids, position, self._send(np.pad(wanted, (0, missing))))
        return self._draw_first(batch.groups, logits)

    @torch.inference_mode()
    def decode(self, batch: DecodeBatch) -> Drawn:
        """One token for every row of the batch."""
        self._apply(batch)
        count = padded_rows(batch.num_rows)
        rows = slice(0, count)
        position, prefix_length = self.position[rows], self.prefix_length[rows]
        block_tables = self.block_tables[rows]
        output = (position - prefix_length).clamp(min=0)  # index of the token that goes in
        size = self.cache.block_size
        blocks = block_tables.gather(1, (output // size)[:, None])[:, 0]
        assert self.plan is not None
        context = DecodeAttention(
            layers=self.model.layers,
            cache=self.cache,
            plan=self.plan,
            suffix=SuffixPlan(self.plan, size, block_tables, prefix_length, position),
            slots=blocks * size + output % size,
        )
        every = torch.arange(count, device=self.device)
        with active(context):
            logits = self.model.forward(self.tokens[rows], position.clamp(min=0), every)
        features = self.state.features(count)
        history = self._remember(output, rows) if features.adjusted else None
        tokens, logprobs = sample(
            logits, self.state, output + 1, rows=rows, history=history, features=features
        )
        self.tokens[rows] = tokens
        self.position[rows] += position >= 0
        return Drawn(tokens, logprobs, *_top(logits, tokens, features.top_logprobs))

    def _remember(self, output: torch.Tensor, rows: slice) -> torch.Tensor:
        """Write the inputs of the step into the rows' histories."""
        width = self.block_tables.shape[1] * self.cache.block_size + 1
        if self.history is None or self.history.shape[1] < width:
            known = self.history
            self.history = self._full((len(self.tokens), width), -1)
            if known is not None:
                self.history[:, : known.shape[1]] = known
        self.history[rows].scatter_(1, output[:, None], self.tokens[rows, None])
        return self.history

    def _apply(self, batch: DecodeBatch) -> None:
        """Bring the device's tables up to date."""
        width = batch.block_tables.shape[1]
        missing = width - self.block_tables.shape[1]
        if missing > 0:
            self.block_tables = torch.nn.functional.pad(
                self.block_tables, (0, missing), value=self.cache.scratch_block
            )
        if batch.moves:
            source, target = (self._send(np.array(side)) for side in zip(*batch.moves, strict=True))
            self.tokens[target] = self.tokens[source]
            if self.history is not None:
                self.history[target] = self.history[source]
            self.state.move_rows(*zip(*batch.moves, strict=True))
        if batch.changed:
            rows = self._send(np.array(batch.changed))
            self.block_tables[rows] = self._send(batch.block_tables.astype(np.int64))
            self.prefix_length[rows] = self._send(batch.prefix_length.astype(np.int64))
            self.position[rows] = self._send(batch.position.astype(np.int64))
            self._start(batch)
        if batch.growth:
            row, column, block = self._send(np.array(batch.growth)).unbind(1)
            self.block_tables[row, column] = block
        if batch.forced:
            row, token = self._send(np.array(batch.forced)).unbind(1)
            self.tokens[row] = token
        if batch.layout is not None:
            self.plan = ReferencePlan(batch.layout, self.cache.block_size, self.device)

    def _start(self, batch: DecodeBatch) -> None:
        """Write the sampling parameters of the sequences that join in this step."""
        started = []
        for row in batch.changed:
            sequence = batch.sequences[row] if row < batch.num_rows else None
            if sequence is not None and batch.index[row] == 1:
                started.append((row, sequence))
        if self.history is not None and started:
            self.history[self._send(np.array([row for row, _ in started]))] = -1
        self.state.set_rows(
            [row for row, _ in started],
            [s.group.request.params for _, s in started],
            [self._key(s.group, s.sample) for _, s in started],
            [s.group.request.prompt_token_ids for _, s in started],
        )

    def _draw_first(self, groups: list[Group], logits: torch.Tensor) -> Drawn:
        params, keys, prompts, logit_rows = [], [], [], []
        for row, group in enumerate(groups):
            for index in group.request.samples:
                params.append(group.request.params)
                keys.append(self._key(group, index))
                prompts.append(group.request.prompt_token_ids)
                logit_rows.append(row)
        if not params:
            empty = torch.empty(0)
            return Drawn(empty.long(), empty)
        state = self.state.fresh(params, keys, prompts)
        zeros = torch.zeros(len(params), dtype=torch.int64, device=self.device)
        which = self._send(np.array(logit_rows))
        tokens, logprobs = sample(logits, state, zeros, logit_rows=which)
        top = _top(logits, tokens, state.features().top_logprobs, which)
        return Drawn(tokens, logprobs, *top)

    def _key(self, group: Group, index: int) -> int:
        seed = group.request.params.seed
        return row_key(self.seed if seed is None else seed, group.request.key, index)

    def _full(self, shape: tuple[int, ...], value: int) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.int64, device=self.device)

    def _send(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)


def _top(
    logits: torch.Tensor, tokens: torch.Tensor, count: int, logit_rows: torch.Tensor | None = None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The `count` likeliest tokens of each place; nothing where nobody asked (-1)."""
    if count < 0:
        return None, None
    _, ids, logprobs = token_logprobs(logits, tokens, count, logit_rows)
    return ids, logprobs
