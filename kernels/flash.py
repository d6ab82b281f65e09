"""The parts of a row's attention by torch's own flash kernel for CPUs, exact like the reference.

It gives a result and its log-sum-exp, which merge as any other part does, and is faster than two
products and a softmax, most where few rows read many keys. What it cannot do is the reference's:
soft caps, masks over common keys, and values of another size than keys. So is what it would round
by how many rows there are, for the arithmetic of a row must not hang on its neighbours: its blocks
of rows are full where rows come in multiples of 16, and fewer than 16 keys are too few for it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sharegen.kernels import reference
from sharegen.kernels.partial import Partial, Parts

_LEAST = 16  # rows come in multiples of this, keys at least so many
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def dense(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, softcap: float | None
) -> Partial:
    """See partial.Dense."""
    if visible is not None or not _serves(k, v, softcap):
        return reference.dense(q, k, v, visible, softcap)
    num_rows, num_heads, size = q.shape
    num_kv_heads = k.shape[1]
    # A query head's rows are as good as any: those of a group follow each other.
    rows = q.view(num_rows, num_kv_heads, -1, size).transpose(0, 1).flatten(1, 2)
    rows = pad(rows, (0, 0, 0, -rows.shape[1] % _LEAST))
    keys, values = k.float().transpose(0, 1), v.float().transpose(0, 1)
    out, lse = _flash(rows[None], keys[None], values[None], scale=1.0)
    of_group = num_rows * (num_heads // num_kv_heads)

    def by_row(result: Tensor) -> Tensor:
        heads = result[0, :, :of_group].unflatten(1, (num_rows, -1))
        return heads.transpose(0, 1).flatten(1, 2)

    return _partial(by_row(out), by_row(lse))


def causal(q: Tensor, k: Tensor, v: Tensor, softcap: float | None) -> Partial:
    """See partial.Causal."""
    if not _serves(k, v, softcap):
        return reference.causal(q, k, v, softcap)
    num_rows, num_heads, size = q.shape
    num_kv_heads = k.shape[1]
    rows = pad(q, (0, 0, 0, 0, 0, -num_rows % _LEAST))
    rows = rows.view(len(rows), num_kv_heads, -1, size).permute(1, 2, 0, 3)
    group = num_heads // num_kv_heads
    keys, values = (x.float().transpose(0, 1)[:, None].expand(-1, group, -1, -1) for x in (k, v))
    out, lse = _flash(rows, keys, values, is_causal=True, scale=1.0)
    return _partial(
        out[:, :, :num_rows].permute(2, 0, 1, 3).flatten(1, 2),
        lse[:, :, :num_rows].permute(2, 0, 1).flatten(1),
    )


def each(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, softcap: float | None) -> Partial:
    """See partial.Each."""
    if not _serves(k[0], v[0], softcap):
        return reference.dense_each(q, k, v, visible, softcap)
    num_rows, num_heads, size = q.shape
    rows = q.view(num_rows, k.shape[2], -1, size)
    keys, values = k.float().transpose(1, 2), v.float().transpose(1, 2)
    bias = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))[:, None, None]
    out, lse = _flash(rows, keys, values, attn_mask=bias, scale=1.0)
    if lse.isnan().any():  # the mask is added: a key that is not a row's own may be NaN
        keys = keys.masked_fill(~visible[:, None, :, None], 0.0)
        out, lse = _flash(rows, keys, values, attn_mask=bias, scale=1.0)
    return _partial(out.reshape(num_rows, num_heads, -1), lse.reshape(num_rows, num_heads))


def _serves(k: Tensor, v: Tensor, softcap: float | None) -> bool:
    return softcap is None and k.shape == v.shape and len(k) >= _LEAST


def _partial(out: Tensor, lse: Tensor) -> Partial:
    return Partial(out, lse, torch.ones_like(lse))


PARTS = Parts(dense, causal, each)
