"""What the blocks of a KV cache are made of, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockFormat:
    """What the pool's blocks are made of.

    token_bytes: bytes of one token in such a block, in all layers. blocks_per_full: how many of the
    blocks take the memory of one full block; 1 where all blocks are full ones. latents: whether
    they hold latents. readers: the most samples for which a prompt that they alone read lies in
    such blocks.
    """

    token_bytes: int
    blocks_per_full: int = 1
    latents: bool = False
    readers: int = 1

    @property
    def shared_token_bytes(self) -> int:
        """Bytes of a token in a full block, which several sequences read."""
        return self.token_bytes * self.blocks_per_full
