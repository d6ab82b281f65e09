"""A device whose every key knows the text that it stands for, to be read by the real scheduler.

With a real model a key read from the wrong place shows as a slightly wrong number, or not at all.
Here a slot of the KV cache holds (the hash of) the whole text up to its token, so that each row of
each batch can be asked whether it reads exactly its own context, every token once. A step costs
microseconds, so that hundreds of random jobs can be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
import torch

from sharegen.engine.core.batch import Batch, DecodeBatch, Drawing, PrefillBatch, Swaps
from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import Request
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.text.stopping import end_tokens
from sharegen.kernels.layout import SharedLayout
from tests.engine.jobs import FIRST_TOKEN, VOCAB_SIZE, CheckedEngine

Text = int
"""A text by its hash; 0 is the empty one."""


def texts_of(tokens: Sequence[int]) -> list[Text]:
    """All beginnings of a text, from that of one token to the whole."""
    texts: list[Text] = []
    for token in tokens:
        texts.append(hash((texts[-1] if texts else 0, token)))
    return texts


@cache
def spelled(prompt: tuple[int, ...], key: int, sample: int, length: int) -> tuple[int, ...]:
    """The first `length` output tokens of a sample: each depends on the whole text before it."""
    text, output = texts_of(prompt)[-1], []
    for _ in range(length):
        output.append(FIRST_TOKEN + hash((text, key, sample)) % (VOCAB_SIZE - FIRST_TOKEN))
        text = hash((text, output[-1]))
    return tuple(output)


class SpellingRunner:
    """Does to texts what the runner does to tensors; asserts what it reads and where it writes."""

    def __init__(self, engine: CheckedEngine, requests: Sequence[Request]) -> None:
        rows = engine.scheduler.max_sequences
        self.size = engine.pool.block_size
        self.scratch = engine.scheduler.rows.scratch_block
        self.shared_levels: tuple[int, ...] = ()
        self.state = engine.runner.state  # engine.check asks it
        self.keys = np.zeros((engine.pool.num_blocks + 1) * self.size, dtype=np.int64)
        self.tokens = np.zeros(rows, dtype=np.int64)
        self.position = np.full(rows, -1)
        self.prefix_length = np.zeros(rows, dtype=np.int64)
        self.block_tables = np.full((rows, 1), self.scratch)
        self.host: dict[int, np.ndarray] = {}  # keys of a block, by slot
        self.coming: dict[int, np.ndarray] = {}  # on their way, by block
        self.layout: SharedLayout | None = None
        self.rows_read = 0
        self.who: list[Drawing | None] = [None] * rows
        self._before = {
            text: before
            for request in requests
            for before, text in pairwise([0, *texts_of(request.prompt_token_ids)])
        }
        # A batch names a sample by the key of its random stream alone.
        self._sample = {
            row_key(engine.config.seed, request.key, sample): (request, sample)
            for request in requests
            for sample in request.samples
        }

    def run(self, batch: Batch) -> Drawn:
        return self.prefill(batch) if isinstance(batch, PrefillBatch) else self.decode(batch)

    def _swap(self, swaps: Swaps | None) -> None:
        """What comes back is there when the next step begins, and what was there is not."""
        for block, keys in self.coming.items():
            self._keys_of(block)[:] = keys
        self.coming.clear()
        if swaps is None:
            return
        for block, slot in swaps.out.tolist():
            self.host[slot] = self._keys_of(block).copy()
            self._keys_of(block)[:] = -1
        self.coming = {block: self.host.pop(slot) for slot, block in swaps.back.tolist()}

    def _keys_of(self, block: int) -> np.ndarray:
        return self.keys[block * self.size : (block + 1) * self.size]

    def _own(self, batch: PrefillBatch, row: int) -> list[Text]:
        """What an output that is a row of a decoding step reads of its sample's own tokens."""
        assert batch.rows is not None
        index = np.arange(batch.positions[row] - batch.rows.prefix_length[row])
        blocks = batch.rows.block_tables[row][index // self.size].astype(np.int64)
        return self.keys[blocks * self.size + index % self.size].tolist()

    def prefill(self, batch: PrefillBatch) -> Drawn:
        self._swap(batch.swaps)
        self._assert_free_of_each_other(batch.slots)
        above = self._above(batch.layout)
        texts: list[Text] = []
        for first, end in pairwise(batch.chunk_starts):
            for row in range(first, end):
                # A layer stores all keys before any row reads: parents may be in the same batch.
                own = texts[first:row] if batch.rows is None else self._own(batch, row)
                context = [*self.keys[above.get(row, [])].tolist(), *own]
                assert len(context) == batch.positions[row]
                assert all(self._before[text] == last for last, text in pairwise([0, *context]))
                before = context[-1] if context else 0
                texts.append(hash((before, int(batch.token_ids[row]))))
                assert self._before[texts[-1]] == before, "no prompt goes on like this"
                self.keys[batch.slots[row]] = texts[-1]
        drawn = []
        rows = batch.logit_rows[batch.prompts].tolist()
        for drawing, row in zip(batch.drawings, rows, strict=True):
            request, sample = self._sample[drawing.key]
            prompt = tuple(request.prompt_token_ids)
            assert texts[row] == texts_of(prompt)[-1], "the logits of another place"
            drawn += spelled(prompt, request.key, sample, 1)
        return _drawn(
            drawn, [self._is_end(d, t) for d, t in zip(batch.drawings, drawn, strict=True)]
        )

    def decode(self, batch: DecodeBatch) -> Drawn:
        self._swap(batch.swaps)
        self._apply(batch)
        rows = range(batch.num_rows)
        output = np.maximum(self.position - self.prefix_length, 0)
        blocks = self.block_tables[np.arange(len(output)), output // self.size]
        slots = blocks * self.size + output % self.size
        live = [row for row in rows if self.position[row] >= 0]
        empty_rows = np.setdiff1d(np.arange(len(output)), [*live, *batch.resting.tolist()])
        assert (self.position[empty_rows] == -1).all() and (
            blocks[empty_rows] == self.scratch
        ).all()
        truths = {row: self._truth(row, int(output[row]) + 1) for row in live}
        for row, (context, _) in truths.items():
            assert self.position[row] == len(context) - 1
        self._assert_free_of_each_other(slots[live])
        self.keys[slots[live]] = [context[-1] for context, _ in truths.values()]
        admitted = sorted([*live, *batch.resting.tolist()])
        assert self.layout is not None and sorted(self.layout.order.tolist()) == admitted
        above = self._above(self.layout)
        for row, (context, drawn) in truths.items():
            own = np.arange(output[row] + 1)
            places = self.block_tables[row, own // self.size] * self.size + own % self.size
            assert self.keys[[*above.get(row, []), *places]].tolist() == context
            self.tokens[row] = drawn
            self.rows_read += 1
        self.position[self.position >= 0] += 1
        tokens = self.tokens[: batch.num_rows].tolist()
        who = self.who[: batch.num_rows]
        ended = [d is not None and self._is_end(d, t) for d, t in zip(who, tokens, strict=True)]
        return _drawn(tokens, ended)

    def _is_end(self, drawing: Drawing, token: int) -> bool:
        return token in end_tokens(drawing.params, self.state.tokenizer, self.state.eos_token_ids)

    def spare_memory(self) -> None:
        """It holds none for speed."""

    def _truth(self, row: int, index: int) -> tuple[list[Text], int]:
        """What the row must read, its input's key included, and the token that it draws.

        index: of that token in its sample's output.
        """
        drawing = self.who[row]
        assert drawing is not None
        request, sample = self._sample[drawing.key]
        prompt = tuple(request.prompt_token_ids)
        output = spelled(prompt, request.key, sample, index + 1)
        assert self.tokens[row] == output[index - 1], "fed another token than was drawn"
        return texts_of((*prompt, *output[:index])), output[index]

    def _apply(self, batch: DecodeBatch) -> None:
        width = batch.block_tables.shape[1]
        missing = max(0, width - self.block_tables.shape[1])
        self.block_tables = np.pad(
            self.block_tables, ((0, 0), (0, missing)), constant_values=self.scratch
        )
        for source, target in batch.moves:
            self.tokens[target] = self.tokens[source]
            self.who[target] = self.who[source]
        for row, drawing in zip(batch.started.tolist(), batch.drawings, strict=True):
            self.who[row] = drawing
        self.block_tables[batch.changed] = batch.block_tables
        self.prefix_length[batch.changed] = batch.prefix_length
        self.position[batch.changed] = batch.position
        for row, column, block in batch.growth:
            self.block_tables[row, column] = block
        for row, token, position in batch.forced:
            assert self.position[row] in (-1, position)
            self.position[row] = position  # it sat out a step
            self.tokens[row] = token
        self.position[batch.resting] = -1
        if batch.layout is not None:
            self.layout = batch.layout

    def _assert_free_of_each_other(self, slots: np.ndarray) -> None:
        assert len(set(slots.tolist())) == len(slots), "two tokens in one slot"
        assert (slots // self.size != self.scratch).all(), "a key that nobody will find"

    def _above(self, layout: SharedLayout) -> dict[int, list[int]]:
        """The slots that each row reads of the shared nodes, parents first."""
        found: dict[int, list[int]] = {}
        for i in range(layout.num_nodes):
            blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]]
            length = int(layout.length[i])
            if layout.contiguous[i]:
                assert len(blocks) == 1, "the first says it all"
                blocks = np.arange(blocks[0], blocks[0] - (-length // self.size))
            slots = (blocks[:, None] * self.size + np.arange(self.size)).ravel().tolist()
            assert 0 < length <= len(slots) and layout.row_start[i] < layout.row_end[i]
            for row in layout.order[layout.row_start[i] : layout.row_end[i]].tolist():
                read = found.setdefault(row, [])
                assert len(read) == layout.position[i], "nodes out of order"
                read += slots[:length]
        return found


def _drawn(tokens: list[int], ended: list[bool]) -> Drawn:
    return Drawn(
        torch.tensor(tokens, dtype=torch.int64),
        torch.zeros(len(tokens)),
        torch.tensor(ended, dtype=torch.bool),
    )
