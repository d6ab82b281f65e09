"""Rows that may draw some tokens only: a bit for every token of the vocabulary.

A row's list may hold most of a vocabulary, so what is kept of a row has one size whatever its
length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BITS = 8
_ALL = 255  # every bit of a byte


class AllowedTokens:
    """The tokens that each row may draw: `bits` uint8 [max_rows, ceil(V / 8)] on the device.

    Allocated with the first row that has a list; rows without one may draw all.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, send: Callable[..., tuple[Tensor, ...]]
    ) -> None:
        self.bits: Tensor | None = None
        self._vocab_size = vocab_size
        self._shape = (max_rows, -(-vocab_size // _BITS))
        self._send = send

    def set_rows(self, rows: Sequence[int], allowed: Sequence[Sequence[int] | None]) -> None:
        """Replace the lists of `rows`; None allows every token."""
        if self.bits is None and all(tokens is None for tokens in allowed):
            return
        packed: dict[int, npt.NDArray[np.uint8]] = {}  # the samples of a request share their list
        for tokens in allowed:
            if id(tokens) not in packed:
                packed[id(tokens)] = self._pack(tokens)
        bits = np.stack([packed[id(tokens)] for tokens in allowed])
        self.write(np.asarray(rows, dtype=np.int64), bits)

    def write(self, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.uint8]) -> None:
        """Replace the bits of `rows`: [n, ceil(V / 8)], bit j of byte i for token 8 * i + j."""
        index, new = self._send(rows, bits)
        if self.bits is None:
            self.bits = torch.full(self._shape, _ALL, dtype=torch.uint8, device=index.device)
        self.bits[index] = new

    def move_rows(self, source: Tensor, target: Tensor) -> None:
        if self.bits is not None:
            self.bits[target] = self.bits[source]

    def apply(self, logits: Tensor, rows: slice | Tensor) -> Tensor:
        """The logits with -inf for what the rows may not draw, a new float32 tensor [n, V]."""
        assert self.bits is not None
        bits = self.bits[rows]
        changed = logits.to(torch.float32, copy=True)
        if changed.is_cuda:
            return changed.masked_fill_(self._barred(bits), -math.inf)
        own = (bits != _ALL).any(-1).nonzero().squeeze(-1)  # rows that may draw all cost no more
        changed[own] = changed[own].masked_fill_(self._barred(bits[own]), -math.inf)
        return changed

    def _barred(self, bits: Tensor) -> Tensor:
        places = 1 << torch.arange(_BITS, dtype=torch.uint8, device=bits.device)
        return ((bits[:, :, None] & places).flatten(1) == 0)[:, : self._vocab_size]

    def _pack(self, tokens: Sequence[int] | None) -> npt.NDArray[np.uint8]:
        if tokens is None:
            return np.full(self._shape[1], _ALL, dtype=np.uint8)
        is_set = np.zeros(self._vocab_size, dtype=bool)
        is_set[np.asarray(tokens, dtype=np.int64)] = True
        return np.packbits(is_set, bitorder="little")
