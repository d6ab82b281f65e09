"""The parts of a row's attention by torch's own flash kernel for CPUs, exact like the reference.

It gives a result and its log-sum-exp, which merge as any other part does, and is faster than two
products and a softmax, most where few rows read many keys. What it cannot do is the reference's:
soft caps, masks over common keys, and values of another size than keys. So is what it would round
by how many rows there are, for the arithmetic of a row must not hang on its neighbours: its blocks
of rows are full where rows come in multiples of 16, and fewer than 16 keys are too few for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from sharegen.kernels import reference
from sharegen.kernels.partial import NOTHING, Common, Partial, Parts

_LEAST = 16  # rows come in multiples of this, keys at least so many
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def dense(q: Tensor, nodes: Sequence[Common], softcap: float | None) -> Partial:
    """See partial.Dense.

    Rows are laid out once for all nodes, so that a node costs little beside the kernel's call: with
    few rows under each, as when samples start in waves, there are many.
    """
    served = [node.visible is None and _serves(node.k, node.v, softcap) for node in nodes]
    if not any(served):
        return reference.dense(q, nodes, softcap)
    num_rows, num_heads, size = q.shape
    num_kv_heads = nodes[0].k.shape[1]
    group = num_heads // num_kv_heads
    # A query head's rows are as good as any: those of a group follow each other.
    heads = q.view(num_rows, num_kv_heads, group, size).transpose(0, 1).flatten(1, 2)
    heads = pad(heads, (0, 0, 0, _LEAST))[None]
    none, no_lse = heads.new_zeros(1, num_kv_heads, 1, size), heads.new_full((1, 1, 1), NOTHING)
    outs: list[Tensor] = []
    lses: list[Tensor] = []
    end = 0

    def skip_to(first: int) -> None:
        """Rows of no node that the kernel serves."""
        if first > end:
            outs.append(none.expand(-1, -1, first - end, -1))
            lses.append(no_lse.expand(-1, num_kv_heads, first - end))

    for node, is_served in zip(nodes, served, strict=True):
        if not is_served:
            continue
        first, last = node.rows.start * group, node.rows.stop * group
        skip_to(first)
        count = last - first
        rows = heads.narrow(2, first, count + -count % _LEAST)  # the next ones fill it up
        keys, values = (x.float().unsqueeze(0).transpose(1, 2) for x in (node.k, node.v))
        out, lse = _flash(rows, keys, values, scale=1.0)
        outs.append(out.narrow(2, 0, count))
        lses.append(lse.narrow(2, 0, count))
        end = last
    skip_to(num_rows * group)

    def by_row(parts: list[Tensor]) -> Tensor:
        whole = torch.cat(parts, dim=2)[0]
        return whole.unflatten(1, (num_rows, group)).transpose(0, 1).flatten(1, 2)

    top = by_row(lses)
    part = Partial(by_row(outs), top, (top != NOTHING).float())
    for node, is_served in zip(nodes, served, strict=True):
        if not is_served:
            part[node.rows] = reference.dense_one(
                q[node.rows], node.k, node.v, node.visible, softcap
            )
    return part


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
