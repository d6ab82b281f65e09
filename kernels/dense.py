"""Attention of rows to keys in plain torch, which also gives its maximum and its sum.

Products are padded, for a BLAS takes other paths for few or odd rows: so the arithmetic of a row
depends neither on the other rows nor on how many there are.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sharegen.kernels.partial import NOTHING, Partial

_LEAST = 16  # rows come in multiples of this, keys at least so many


def dense_one(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, softcap: float | None
) -> Partial:
    """Attend from rows to keys that all of them have in common.

    Args:
        q: [T, num_heads, D], scaled.
        k, v: [L, num_kv_heads, *].
        visible: [T, L] which keys a row sees; None for all.
        softcap: limit of the scores, where the model has one.
    """
    num_rows, num_heads, _ = q.shape
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    queries = q.view(num_rows, num_kv_heads, group, -1).transpose(0, 1).flatten(1, 2)
    keys, values = k.float().transpose(0, 1), v.float().transpose(0, 1)
    if visible is not None:
        visible = visible.repeat_interleave(group, dim=0)
    rows, length = queries.shape[1], keys.shape[1]
    more_rows, more_keys = -rows % _LEAST, max(0, _LEAST - length)
    if more_rows or more_keys:
        queries = pad(queries, (0, 0, 0, more_rows))
        if more_keys:  # which are long, and copied
            keys, values = pad(keys, (0, 0, 0, more_keys)), pad(values, (0, 0, 0, more_keys))
        if visible is not None or more_keys:
            if visible is None:
                visible = torch.ones(rows, length, dtype=torch.bool, device=q.device)
            visible = pad(visible, (0, more_keys, 0, more_rows))
    out, top, total = _softmax(torch.bmm(queries, keys.transpose(1, 2)), values, visible, softcap)

    def by_row(result: Tensor) -> Tensor:
        heads = result[:, :rows].view(num_kv_heads, num_rows, group, -1)
        return heads.transpose(0, 1).flatten(1, 2)

    return Partial(by_row(out), by_row(top)[..., 0], by_row(total)[..., 0])


def dense_each(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, softcap: float | None) -> Partial:
    """Attend from rows q [T, num_heads, D], scaled, to their own keys k [T, L, num_kv_heads, D], v.

    visible: [T, L] which of the keys the row sees; it may be none.
    """
    if len(q) == 1:  # one product alone would not be computed as one of many
        q, k, v, visible = (torch.cat([tensor, tensor]) for tensor in (q, k, v, visible))
        return dense_each(q, k, v, visible, softcap)[:1]
    num_kv_heads = k.shape[2]
    queries = q.view(len(q), num_kv_heads, -1, q.shape[2])
    parts = []
    for head in range(num_kv_heads):  # a view per head copies nothing; heads are few
        scores = torch.bmm(queries[:, head], k[:, :, head].float().transpose(1, 2))
        parts.append(_softmax(scores, v[:, :, head].float(), visible[:, None], softcap))
    out, top, total = (torch.cat(heads, dim=1) for heads in zip(*parts, strict=True))
    return Partial(out, top[..., 0], total[..., 0])


def _softmax(
    scores: Tensor, values: Tensor, visible: Tensor | None, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weigh values [N, L, D] by scores [N, M, L], which are overwritten.

    Returns:
        out [N, M, D], top [N, M, 1], total [N, M, 1].
    """
    if softcap is not None:
        scores = torch.tanh(scores / softcap).mul_(softcap)
    if visible is not None:
        scores.masked_fill_(~visible, float("-inf"))
    top = scores.amax(dim=-1, keepdim=True).clamp_(min=NOTHING)
    weights = scores.sub_(top).exp_()
    return torch.bmm(weights, values), top, weights.sum(dim=-1, keepdim=True)
