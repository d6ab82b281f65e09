"""Latents of keys and values in blocks: the absorbed form of attention, and its plain torch.

A key is W_k c beside a part r that all heads have in common, a value W_v c, of one latent c a
token. So q . k = (W_k^T q_c) . c + q_r . r, and the sum over values is W_v times the sum over
latents: queries absorb W_k, results are raised by W_v, and attention between them has one KV head,
of which a token's key is (c, r) and its value c (DeepSeek-V2, 2405.04434, section 2.1.2). It reads
few bytes and multiplies more than keys and values that are spread out over heads: right for what
few rows read, and merged with what many rows read (TyphoonMLA, 2509.21081) by log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

_ROWS = 16  # latents are spread out in multiples of this: a BLAS takes other paths for few rows


@dataclass(frozen=True)
class Latents:
    """One layer's blocks of latents, and the weight that spreads these out.

    blocks: [blocks, block_size, width], of each token its latent, what its keys have in common,
    and padding. weight: [num_heads * (of_latent + value_size), rank]. key_size: of a head.
    """

    blocks: Tensor
    weight: Tensor
    num_heads: int
    key_size: int
    of_latent: int

    @property
    def rank(self) -> int:
        return self.weight.shape[1]

    @property
    def size(self) -> int:
        """Numbers of a token without padding."""
        return self.rank + self.key_size - self.of_latent

    def _halves(self) -> tuple[Tensor, Tensor]:
        """W_k [num_heads, of_latent, rank] and W_v [num_heads, value_size, rank]."""
        weight = self.weight.view(self.num_heads, -1, self.rank)
        return weight[:, : self.of_latent], weight[:, self.of_latent :]

    def absorb(self, q: Tensor) -> Tensor:
        """Turn queries q [T, num_heads, key_size] into such of latents [T, num_heads, size]."""
        w_k, _ = self._halves()
        out = q.new_empty(len(q), self.num_heads, self.size)
        of_latent = q[..., : self.of_latent].transpose(0, 1)
        torch.bmm(of_latent, w_k.to(q.dtype), out=out[..., : self.rank].transpose(0, 1))
        out[..., self.rank :] = q[..., self.of_latent :]
        return out

    def raised(self, out: Tensor) -> Tensor:
        """Turn results [T, num_heads, rank] over latents into [T, num_heads, value_size]."""
        _, w_v = self._halves()
        values = out.new_empty(len(out), self.num_heads, w_v.shape[1])
        w_v = w_v.to(out.dtype).transpose(1, 2)
        torch.bmm(out.transpose(0, 1), w_v, out=values.transpose(0, 1))
        return values

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Read keys [T, num_heads, key_size] and values [T, num_heads, *] of slots [T]."""
        tokens = self.blocks.flatten(0, 1).index_select(0, slots)
        latent = pad(tokens[:, : self.rank], (0, 0, 0, -len(slots) % _ROWS))
        made = linear(latent, self.weight)[: len(slots)].view(len(slots), self.num_heads, -1)
        rest = tokens[:, None, self.rank : self.size].expand(-1, self.num_heads, -1)
        keys = torch.cat([made[..., : self.of_latent], rest], dim=-1)
        return keys, made[..., self.of_latent :]


def store_latents(latent: Tensor, rest: Tensor, blocks: Tensor, slots: Tensor) -> None:
    """Put tokens' latents [T, rank] and what their keys have in common [T, *] into slots [T].

    blocks: [blocks, block_size, width]. A row with a negative slot is left out. A latent in the
    cache is finite: one that is not becomes 0 and the rest NaN, as `reference.store` has it.
    """
    finite = latent.isfinite().all(-1, keepdim=True)
    rows = torch.cat([latent.where(finite, 0.0), rest.where(finite, torch.nan)], dim=-1)
    rows = pad(rows, (0, blocks.shape[2] - rows.shape[1]))
    has = slots >= 0
    if not has.all():
        rows, slots = rows[has], slots[has]
    blocks.view(-1, blocks.shape[2]).index_copy_(0, slots, rows)
