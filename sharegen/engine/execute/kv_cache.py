"""The KV cache's tensors: one pool of blocks a layer, allocated once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from sharegen.engine.core.block_format import BlockFormat
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.attention.spreading import latents_per_token
from sharegen.errors import UsageError
from sharegen.kernels.cost import most_latent_readers
from sharegen.kernels.fp8_blocks import FP8Blocks, exponent_bytes

_FP8_CAPABILITY = (8, 9)


def check_kv_cache_dtype(kv_cache_dtype: str, device: torch.device) -> None:
    """Raise UsageError for FP8 on a GPU that cannot turn its numbers into others."""
    if kv_cache_dtype != "auto" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) < _FP8_CAPABILITY:
            raise UsageError(
                f"--kv-cache-dtype {kv_cache_dtype}: this GPU (sm_{major}{minor}) has no FP8: "
                "leave it out, or use a GPU of sm_89 or later"
            )


def block_format(
    layers: Sequence[LayerSpec], dtype: torch.dtype, kv_cache_dtype: str, latents: bool = True
) -> BlockFormat:
    """Return the format of a KV cache's blocks.

    A model without attention keeps the token's own id and nothing else.

    Args:
        layers: the attention of each layer that has one.
        dtype: the model's.
        kv_cache_dtype: "auto" for the model's dtype in all blocks, or "fp8".
        latents: whether samples' own tokens may be latents, where the layers have such.
    """
    if not layers:
        return BlockFormat(torch.int32.itemsize)
    numbers = sum(spec.num_kv_heads * (spec.key_size + spec.value_size) for spec in layers)
    if kv_cache_dtype == "auto":
        found = _of_latents(layers, dtype) if latents else None
        return found or BlockFormat(numbers * dtype.itemsize)
    scales = sum(exponent_bytes(spec.num_kv_heads) for spec in layers)
    return BlockFormat(numbers + scales, dtype.itemsize)


def _of_latents(layers: Sequence[LayerSpec], dtype: torch.dtype) -> BlockFormat | None:
    """The format of blocks of latents, where all layers have such: they are alike."""
    latent = layers[0].latent
    if latent is None:
        return None
    width = latent.width(layers[0].key_size, dtype)
    token = len(layers) * width * dtype.itemsize
    spread, first = latents_per_token(layers[0], dtype), layers[0]
    readers = most_latent_readers(first.num_kv_heads, first.key_size + first.value_size,
                                  latent.rank, width)  # fmt: skip
    return BlockFormat(token, spread, latents=True, readers=readers)


class KVCache:
    """The keys and values of all layers, in the blocks that the block pool hands out.

    A full block is `blocks_per_full` of the pool's blocks. The last full block is scratch: rows of
    a batch that hold no sequence write there. All is zeroed, since what a mask hides must still be
    finite.

    Args:
        layers: the attention of each layer of the model that has one.
        num_blocks: blocks of the pool, a multiple of `blocks_per_full`.
        block_size: tokens of a block.
        dtype: of the full-precision blocks, which is the model's.
        device: where the cache lies.
        blocks_per_full: more than 1 where the pool's blocks are FP8 blocks, or of latents.
        latents: whether they are of latents.

    Attributes:
        keys: for each layer [full blocks + 1, block_size, num_kv_heads, key_size].
        values: for each layer [full blocks + 1, block_size, num_kv_heads, value_size].
        fp8: for each layer the same memory as FP8 blocks (`kernels/fp8_blocks.py`), with scales
            beside it; empty where the pool's blocks are not such.
        latents: for each layer the same memory as [blocks + blocks_per_full, block_size, width];
            empty where the pool's blocks are not of latents. A token's keys and values lie side by
            side then, so that its memory is that of whole latents.
        tokens: [blocks + blocks_per_full, block_size] int32, the outputs' tokens, where a penalty
            looks back at them.
        by_block: [blocks + blocks_per_full, numbers] for each layer and for the tokens: the same
            memory as plain bits, of which one row is a sample's own block.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        blocks_per_full: int = 1,
        latents: bool = False,
    ) -> None:
        assert num_blocks % blocks_per_full == 0
        self.block_size = block_size
        self.dtype, self.device = dtype, device
        self.blocks_per_full = blocks_per_full
        self.scratch_block = num_blocks
        shape = (num_blocks // blocks_per_full + 1, block_size)
        self.fp8: list[FP8Blocks] = []
        self.latents: list[torch.Tensor] = []
        if latents:
            self._lay_out_latents(layers, shape)
        else:
            self.keys = [
                _zeros((*shape, spec.num_kv_heads, spec.key_size), dtype, device) for spec in layers
            ]
            self.values = [
                _zeros((*shape, spec.num_kv_heads, spec.value_size), dtype, device)
                for spec in layers
            ]
        if blocks_per_full > 1 and not latents:
            self.fp8 = [self._as_fp8(*both) for both in zip(self.keys, self.values, strict=True)]
        self.tokens = _zeros((num_blocks + blocks_per_full, block_size), torch.int32, device)
        self.by_block = _as_bits([*self._own_blocks(), self.tokens])

    @property
    def scratch_slot(self) -> int:
        """A slot of the full-precision blocks that no sequence has."""
        return self.scratch_block // self.blocks_per_full * self.block_size

    def copy_blocks(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy blocks of samples' own tokens onto others.

        Args:
            source, target: [n] int64, blocks of the pool.
        """
        for tensor in self.by_block:
            tensor[target] = tensor[source]

    def _own_blocks(self) -> list[torch.Tensor]:
        """The tensors in which samples' own blocks lie."""
        if self.latents:
            return self.latents
        if self.blocks_per_full == 1:
            return [*self.keys, *self.values]
        kinds = [(kv.keys, kv.values, kv.exponents) for kv in self.fp8]
        return [tensor for kind in kinds for tensor in kind]

    def _lay_out_latents(self, layers: Sequence[LayerSpec], shape: tuple[int, int]) -> None:
        self.keys, self.values = [], []
        for spec in layers:
            assert spec.latent is not None
            width = spec.latent.width(spec.key_size, self.dtype)
            memory = _zeros((*shape, self.blocks_per_full * width), self.dtype, self.device)
            sizes = [spec.num_kv_heads * size for size in (spec.key_size, spec.value_size)]
            keys, values, _ = memory.split([*sizes, memory.shape[2] - sum(sizes)], dim=-1)
            self.keys.append(keys.unflatten(2, (spec.num_kv_heads, -1)))
            self.values.append(values.unflatten(2, (spec.num_kv_heads, -1)))
            self.latents.append(memory.view(-1, self.block_size, width))

    def _as_fp8(self, keys: torch.Tensor, values: torch.Tensor) -> FP8Blocks:
        blocks = len(keys) * self.blocks_per_full
        heads = keys.shape[2]
        exponents = _zeros((blocks, heads, 2, self.block_size), torch.uint8, self.device)
        return FP8Blocks(
            keys.view(-1).view(torch.float8_e4m3fn).view(blocks, *keys.shape[1:]),
            values.view(-1).view(torch.float8_e4m3fn).view(blocks, *values.shape[1:]),
            exponents,
        )


def _as_bits(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """View each tensor as [blocks, numbers], in the widest integers that divide all blocks."""
    flat = [tensor.view(torch.uint8).flatten(1) for tensor in tensors]
    kinds = (torch.int64, torch.int32, torch.uint8)
    widest = next(kind for kind in kinds if all(f.shape[1] % kind.itemsize == 0 for f in flat))
    return [each.view(widest) for each in flat]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on a CPU pages that the system zeroes when they are first touched, most never are."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(pages).view(dtype).view(shape)
