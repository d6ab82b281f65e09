"""The KV cache's tensors: one pool of blocks a layer, allocated once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from sharegen.engine.model.probe import LayerSpec


class KVCache:
    """keys[layer]: [num_blocks + 1, block_size, num_kv_heads, key_size]; values[layer] likewise.

    tokens: int32 [num_blocks + 1, block_size], of outputs, where a penalty looks back at them.
    The last block is scratch: rows of a batch that hold no sequence write there. Zeroed, since
    what a mask hides must still be finite.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.dtype, self.device = dtype, device
        self.scratch_block = num_blocks
        shape = (num_blocks + 1, block_size)
        self.keys = [
            _zeros((*shape, spec.num_kv_heads, spec.key_size), dtype, device) for spec in layers
        ]
        self.values = [
            _zeros((*shape, spec.num_kv_heads, spec.value_size), dtype, device) for spec in layers
        ]
        self.tokens = _zeros(shape, torch.int32, device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU pages that the system zeroes when they are first touched, most never are."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)
