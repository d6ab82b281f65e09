"""Nodes of one prefill batch side by side, spread out: for chunks with latents above them.

Prompts that one sample reads lie as latents, and a chunk of one that is longer than a batch reads
the chunks before it. That is rare, so nodes are copied for it, those of latents spread out, and the
kernels for keys and values read the copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from sharegen.kernels.latents import Latents
from sharegen.kernels.layout import SharedLayout

_Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SpreadNodes:
    """Where the nodes' tokens lie, and where each of their copies goes.

    full, full_to: [n] int64, slots of keys and values. latent, latent_to: [m] int64, slots of
    latents. block_size: tokens of a block; tokens: those of the copies, whole blocks.
    """

    full: torch.Tensor
    full_to: torch.Tensor
    latent: torch.Tensor
    latent_to: torch.Tensor
    block_size: int
    tokens: int

    def of(
        self, k_cache: torch.Tensor, v_cache: torch.Tensor, latents: Latents
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One layer's copies: [blocks, block_size, num_heads, *], zeros beyond the nodes' ends."""
        keys, values = latents.read(self.latent)
        copies = []
        for cache, made in ((k_cache, keys), (v_cache, values)):
            copy = cache.new_zeros(self.tokens, *cache.shape[2:])
            copy.index_copy_(0, self.full_to, cache.flatten(0, 1).index_select(0, self.full))
            copy.index_copy_(0, self.latent_to, made)
            copies.append(copy.unflatten(0, (-1, self.block_size)))
        return copies[0], copies[1]


def copied(layout: SharedLayout, block_size: int) -> tuple[SharedLayout, tuple[_Places, ...], int]:
    """The layout of the copies, the four arrays of places of `SpreadNodes`, and the tokens."""
    places: dict[bool, tuple[list[_Places], list[_Places]]] = {False: ([], []), True: ([], [])}
    count = -(-layout.length.astype(np.int64) // block_size)
    first = np.cumsum(count) - count
    for i in range(layout.num_nodes):
        token = np.arange(layout.length[i], dtype=np.int64)
        blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]].astype(np.int64)
        block = blocks[0] + token // block_size
        if not layout.contiguous[i]:
            block = blocks[token // block_size]
        source, target = places[bool(layout.fp8[i])]
        source.append(block * block_size + token % block_size)
        target.append(first[i] * block_size + token)
    none = np.empty(0, dtype=np.int64)
    arrays = tuple(
        np.concatenate([none, *parts]) for kind in (False, True) for parts in places[kind]
    )
    there = replace(
        layout,
        block_start=np.arange(layout.num_nodes + 1, dtype=np.int32),
        blocks=first.astype(np.int32),
        contiguous=np.ones(layout.num_nodes, dtype=np.bool_),
        fp8=np.zeros(layout.num_nodes, dtype=np.bool_),
    )
    return there, arrays, int(count.sum()) * block_size
