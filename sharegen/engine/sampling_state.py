"""How each running row is to be sampled, as arrays on the device.

A row is a running sequence's place in the batch. The host writes a row when a sequence starts and
moves it when a hole is filled; a decoding step only reads. `features()` says on the host what the
live rows ask for, so that a step pays for nothing else and a CUDA graph can be keyed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharegen.engine.request import SamplingParams

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing a logit by it would only lose its digits."""

_FLOATS = ("temperature", "top_p", "min_p")


@dataclass(frozen=True)
class Features:
    """What the live rows ask of a step; hashable, a CUDA graph's key.

    greedy: no row draws at random. filtered: some row has top_k, top_p or min_p.
    """

    greedy: bool = True
    filtered: bool = False


class SamplingState:
    """The sampling parameters of up to max_rows rows.

    Arrays on `device`, all with max_rows first: temperature, top_p, min_p float32; top_k int64
    (vocab_size where there is no limit); keys int64 from `row_key`; end_ids int64 [max_rows, E],
    the tokens that end the row (-1 pads).
    """

    def __init__(
        self,
        max_rows: int,
        vocab_size: int,
        device: torch.device | str = "cpu",
        *,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Any = None,
    ) -> None:
        self.max_rows = max_rows
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.eos_token_ids = tuple(eos_token_ids)
        self.tokenizer = tokenizer
        self._floats = torch.ones(max_rows, len(_FLOATS), device=self.device)
        self._ints = torch.zeros(max_rows, 2, dtype=torch.int64, device=self.device)
        self.end_ids = torch.full((max_rows, 1), -1, dtype=torch.int64, device=self.device)
        self._random = np.zeros(max_rows, dtype=bool)
        self._filtered = np.zeros(max_rows, dtype=bool)

    @property
    def temperature(self) -> Tensor:
        return self._floats[:, 0]

    @property
    def top_p(self) -> Tensor:
        return self._floats[:, 1]

    @property
    def min_p(self) -> Tensor:
        return self._floats[:, 2]

    @property
    def keys(self) -> Tensor:
        return self._ints[:, 0]

    @property
    def top_k(self) -> Tensor:
        return self._ints[:, 1]

    def set_rows(
        self,
        rows: Sequence[int],
        params: Sequence[SamplingParams],
        keys: Sequence[int],
        prompts: Sequence[Sequence[int]],
    ) -> None:
        """Write what the sequences that start in `rows` ask for.

        keys: from `row_key`, one a row; prompts: the prompt's token ids, one list a row.
        """
        if not rows:
            return
        ends = [self._end_ids(p) for p in params]
        width = max(self.end_ids.shape[1], *(len(e) for e in ends))
        self._widen_end_ids(width)
        index = self._send(np.asarray(rows, dtype=np.int64))
        floats = [[getattr(p, name) for name in _FLOATS] for p in params]
        ints = [[key, self._top_k(p)] for key, p in zip(keys, params, strict=True)]
        padded = [[*e, *[-1] * (width - len(e))] for e in ends]
        self._floats[index] = self._send(np.asarray(floats, dtype=np.float32))
        self._ints[index] = self._send(np.asarray(ints, dtype=np.int64))
        self.end_ids[index] = self._send(np.asarray(padded, dtype=np.int64))
        self._random[rows] = [p.temperature >= GREEDY_BELOW for p in params]
        self._filtered[rows] = [
            self._top_k(p) < self.vocab_size or p.top_p < 1 or p.min_p > 0 for p in params
        ]

    def move_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy rows onto others; no row may be both a source and a target."""
        if not sources:
            return
        source, target = (self._send(np.asarray(r, dtype=np.int64)) for r in (sources, targets))
        for array in (self._floats, self._ints, self.end_ids):
            array[target] = array[source]
        for flags in (self._random, self._filtered):
            flags[targets] = flags[sources]

    def fresh(
        self,
        params: Sequence[SamplingParams],
        keys: Sequence[int],
        prompts: Sequence[Sequence[int]],
    ) -> SamplingState:
        """A state of its own for sequences that have no row yet (their first tokens)."""
        state = SamplingState(
            len(params),
            self.vocab_size,
            self.device,
            eos_token_ids=self.eos_token_ids,
            tokenizer=self.tokenizer,
        )
        state.set_rows(range(len(params)), params, keys, prompts)
        return state

    def features(self, num_rows: int | None = None) -> Features:
        """What the first num_rows rows (all by default) ask for."""
        live = slice(0, num_rows)
        random = self._random[live]
        return Features(
            greedy=not random.any(), filtered=bool((self._filtered[live] & random).any())
        )

    def is_end(self, tokens: Tensor, rows: slice | Tensor) -> Tensor:
        """Whether each row's token is an EOS or stop token id of that row: bool [n], on device."""
        return (tokens[:, None] == self.end_ids[rows]).any(-1)

    def _top_k(self, params: SamplingParams) -> int:
        return min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size

    def _end_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos = () if params.ignore_eos else self.eos_token_ids
        return (*eos, *params.stop_token_ids)

    def _widen_end_ids(self, width: int) -> None:
        missing = width - self.end_ids.shape[1]
        if missing > 0:
            self.end_ids = torch.nn.functional.pad(self.end_ids, (0, missing), value=-1)

    def _send(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)
