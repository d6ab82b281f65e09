"""Items of the plan's work list, as the kernels of the shared phase read them."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from sharegen.kernels.attention_plan import ITEM_FIELDS

_ITEM_FIELDS = tl.constexpr(ITEM_FIELDS)


@triton.jit
def item_of(items_ptr, work, NUM_KV_HEADS: tl.constexpr):
    """Return (KV head, first row, ordinal of its partials, first segment, end of its segments)."""
    item_ptr = items_ptr + work // NUM_KV_HEADS * _ITEM_FIELDS
    first_of_run = tl.load(item_ptr + 4)
    run = tl.maximum(tl.load(item_ptr + 5), 1)  # 0 where no item was ever written
    work_of_run = work - first_of_run * NUM_KV_HEADS
    kv_head = work_of_run // run
    item_ptr = items_ptr + (first_of_run + work_of_run % run) * _ITEM_FIELDS
    first_row = tl.load(item_ptr)
    ordinal = tl.load(item_ptr + 1)
    first_segment = tl.load(item_ptr + 2)
    last_segment = tl.load(item_ptr + 3)
    return kv_head, first_row, ordinal, first_segment, last_segment


@triton.jit
def next_item(items_ptr, work, num_work, NUM_KV_HEADS: tl.constexpr):
    """What `item_of` returns, or of some other work where there is none of this number."""
    return item_of(items_ptr, tl.maximum(tl.minimum(work, num_work - 1), 0), NUM_KV_HEADS)
