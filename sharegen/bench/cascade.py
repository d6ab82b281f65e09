"""FlashInfer's best parts, put together for a tree: what our kernel is measured beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from sharegen.bench.attention_tensors import Tensors

_WORKSPACE = 256 << 20  # bytes that FlashInfer asks for


def cascade_step(tensors: Tensors) -> Callable[[], torch.Tensor]:
    """Run FlashInfer's prefill wrapper for every shared level, its tensor-core decode wrapper for
    the suffixes, merged.

    Its rows are in tree order from the start, and so are those of its result: see `by_row`.
    """
    import flashinfer

    case, shape, device = tensors.case, tensors.shape, tensors.q.device
    cache = (tensors.k_cache, tensors.v_cache)
    order = torch.from_numpy(tensors.layout.order).to(device).long()
    q = tensors.q[order]
    types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}

    def workspace() -> torch.Tensor:
        return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)

    def paging(lengths: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = -(-lengths // shape.block_size)
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        last = (lengths - 1) % shape.block_size + 1
        return starts.to(device), blocks.to(device), last.to(torch.int32).to(device)

    parts = []
    if case.suffix:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(), "NHD", use_tensor_cores=True
        )
        own = paging(torch.full((case.rows,), case.suffix), tensors.block_tables[order].flatten())
        decode.plan(
            *own, shape.num_heads, shape.num_kv_heads, case.head_size, shape.block_size, **types
        )  # fmt: skip
        parts.append(decode)
    for rows, lengths, blocks in levels_of(tensors):
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
        prefill.plan(
            rows.to(device), *paging(lengths, blocks), shape.num_heads, shape.num_kv_heads,
            case.head_size, shape.block_size, causal=False, **types,
        )  # fmt: skip
        parts.append(prefill)
    first, *others = parts

    def step() -> torch.Tensor:
        out, lse = first.run(q, cache, return_lse=True)
        for part in others:
            flashinfer.merge_state_in_place(out, lse, *part.run(q, cache, return_lse=True))
        return out

    return step


def by_row(tensors: Tensors, out: torch.Tensor) -> torch.Tensor:
    """Return a result in tree order as one in the order of rows."""
    order = torch.from_numpy(tensors.layout.order).to(out.device).long()
    return torch.empty_like(out).index_copy_(0, order, out)


def levels_of(tensors: Tensors) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield (row starts, lengths, blocks) of the nodes of each level of the tree."""
    layout = tensors.layout
    for position in sorted(set(layout.position.tolist())):
        (nodes,) = (layout.position == position).nonzero()
        starts = torch.from_numpy(layout.row_start[nodes].copy())
        rows = torch.cat([starts, torch.tensor([layout.row_end[nodes[-1]]], dtype=torch.int32)])
        first, last = layout.block_start[nodes[0]], layout.block_start[nodes[-1] + 1]
        lengths = torch.from_numpy(layout.length[nodes].copy())
        yield rows, lengths, torch.from_numpy(layout.blocks[first:last].copy())
