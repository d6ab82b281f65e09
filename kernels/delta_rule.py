"""One token of the gated delta rule for many sequences, on states that stay where they lie.

Gated DeltaNet (2412.06464), equation 10, and with a decay for each key number Kimi Linear's KDA
(2510.26692): S = decay * S + beta * k (v - (decay * S)^T k)^T, and out = S^T q.

What token i changes is one product, k_i u_i^T, so that t tokens behind a state S_0

    S_t = D_t S_0 + sum over i of D_t / D_i  k_i u_i^T,   D_t being the product of the decays.

So a sequence's state need not be written while its tokens are few: k_i as it came, u_i divided by
its length, and log D_i are kept in the slot that will have the state one day, and S_0 is read where
it is, which for samples of one prompt is one place. A state of 128 x 128 float32 numbers has room
for 127 tokens in bfloat16. Then it is *settled*: the sum is written over them, and from there on
the state changes in place.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

# Tiles are the fastest of a few on an H200: 1,024 sequences, 32 heads on 16, states of 128 x 128.
_BLOCK_TOKENS = 16  # of a sequence's own that a program reads at once
_OWN_WARPS, _OWN_REGISTERS = 1, 160
_OTHER_WARPS = 2  # where they are of more than 16 bits, or in larger heads
_SETTLED_TOKENS = 16  # likewise, when they become a state
_BLOCK_PART = 16  # of a key's numbers that a program takes at once of a shared state
_ROWS, _BLOCK_VALUES = 16, 64  # sequences and a state's columns for which a program reads it
_START_WARPS, _START_STAGES = 2, 3
_COLUMNS = 8  # of a product
_TURNS = 32  # sequences of a program that changes states in place
_SETTLING = 128  # sequences of a program that settles states
_LEAST = 16  # rows of a product
_NUMBERS = 128  # of a state that a thread holds, and fewer where it also multiplies
_EPSILON = tl.constexpr(1e-6)  # of the norm of queries and keys, as in transformers
_TF32 = tl.constexpr(-(1 << 13))  # the bits of a float32 that are there in tf32
_LARGEST = tl.constexpr(65504.0)  # float16
_LEAST_DECAY = tl.constexpr(-1e4)  # log; so that sums of them, and their differences, are finite


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + _EPSILON)


@triton.jit
def _add(a, b, c, x, y, z):
    return a + x, b + y, c + z


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    """Keys have any length: beyond what float16 holds a number is its largest, and not infinite."""
    if dtype == tl.float16:
        x = tl.clamp(x, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return x.to(dtype)


@triton.jit
def _step_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, states_ptr, read_ptr, write_ptr, kept_ptr, out_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_vr, stride_vh, stride_slot, scale, rows,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    DECAYS: tl.constexpr, KEEPS: tl.constexpr, TURNS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The states of some sequences, far from each other, change in place in one head."""
    stride = tl.cdiv(rows, TURNS)
    first, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    if KEEPS:
        turns = first + tl.arange(0, TURNS) * stride
        if tl.min(tl.load(kept_ptr + turns, mask=turns < rows, other=0)) >= 0:
            return
    i, j = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    place = (head * K + i[:, None]) * V + j[None, :]
    real = (i[:, None] < K) & (j[None, :] < V)
    of_head = head // GROUP
    for turn in range(first, rows, stride):
        is_there = True
        if KEEPS:
            is_there = tl.load(kept_ptr + turn) < 0
        if is_there:
            row = tl.cast(turn, tl.int64)
            of_row = row * HEADS + head
            q = tl.load(q_ptr + row * stride_qr + of_head * stride_qh + i, mask=i < K, other=0.0)
            k = tl.load(k_ptr + row * stride_kr + of_head * stride_kh + i, mask=i < K, other=0.0)
            v = tl.load(v_ptr + row * stride_vr + head * stride_vh + j, mask=j < V, other=0.0)
            q, k = _unit(q.to(tl.float32)) * scale, _unit(k.to(tl.float32))
            beta = tl.load(beta_ptr + of_row).to(tl.float32)
            slot = tl.load(read_ptr + row).to(tl.int64)
            state = tl.load(states_ptr + slot * stride_slot + place, mask=real, other=0.0)
            if DECAYS == 1:
                state *= tl.exp(tl.load(decay_ptr + of_row).to(tl.float32))
            else:
                decay = tl.load(decay_ptr + of_row * K + i, mask=i < K, other=0.0)
                state *= tl.exp(decay.to(tl.float32))[:, None]
            change = (v.to(tl.float32) - tl.sum(state * k[:, None], 0)) * beta
            state += k[:, None] * change[None, :]
            slot = tl.load(write_ptr + row).to(tl.int64)
            tl.store(states_ptr + slot * stride_slot + place, state, mask=real)
            tl.store(out_ptr + of_row * V + j, tl.sum(state * q[:, None], 0), mask=j < V)


@triton.jit
def _start_kernel(
    q_ptr, k_ptr, states_ptr, read_ptr, kept_ptr, products_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_slot, rows,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_P: tl.constexpr, V_PARTS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """S_0^T k and S_0^T q of neighbours in one head, V / V_PARTS numbers of them, of queries and
    keys as they came: S_0 is read once for those that have it."""
    groups = tl.cdiv(rows, ROWS)
    part, rest = tl.program_id(0) % V_PARTS, tl.program_id(0) // V_PARTS
    head, first = rest // groups, rest % groups * ROWS
    j, m = part * BLOCK_V + tl.arange(0, BLOCK_V), tl.arange(0, 2 * ROWS)
    row, is_query = (first + m % ROWS).to(tl.int64), m >= ROWS
    keeps = tl.load(kept_ptr + row, mask=row < rows, other=-1) >= 0
    slots = tl.load(read_ptr + row, mask=keeps, other=-1).to(tl.int64)
    of_head = head // GROUP
    key = k_ptr + row * stride_kr + of_head * stride_kh
    query = q_ptr + row * stride_qr + of_head * stride_qh
    vectors = tl.where(is_query, query, key)
    to = (row * HEADS + head) * (2 * V) + tl.where(is_query, V, 0)
    slot = tl.max(slots, 0)
    while slot >= 0:  # of those that are left
        have = slots == slot
        product = tl.zeros((2 * ROWS, BLOCK_V), tl.float32)
        for start in range(0, K, BLOCK_P):
            p = start + tl.arange(0, BLOCK_P)
            mask = have[:, None] & (p[None, :] < K)
            vector = tl.load(vectors[:, None] + p[None, :], mask=mask, other=0.0)
            state = tl.load(
                states_ptr + slot * stride_slot + (head * K + p[:, None]) * V + j[None, :],
                mask=(p[:, None] < K) & (j[None, :] < V), other=0.0,
            )  # fmt: skip
            whole = vector.to(tl.float32)
            if q_ptr.dtype.element_ty == tl.float32:
                product += tl.dot(whole, state, input_precision="tf32x3")
            else:  # 16 bits are exact in tf32: two products instead of three
                high = (state.to(tl.int32, bitcast=True) & _TF32).to(tl.float32, bitcast=True)
                product = tl.dot(whole, high, product, input_precision="tf32")
                product = tl.dot(whole, state - high, product, input_precision="tf32")
        out = products_ptr + to[:, None] + j[None, :]
        mask = have[:, None] & (j[None, :] < V)
        tl.store(out, product, mask=mask, eviction_policy="evict_last")  # they are read next
        slots = tl.where(have, -1, slots)
        slot = tl.max(slots, 0)


@triton.jit
def _own_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, states_ptr, tokens_ptr, write_ptr, kept_ptr,
    products_ptr, out_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_vr, stride_vh, stride_slot, scale,
    ROOM: tl.constexpr, WORDS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The outputs of a sequence in the heads of one key head, from the products with S_0 and the
    tokens that it keeps; the token itself is kept with them.

    Columns c are two of each head, for the key and for the query. WORDS: of tokens_ptr in a number
    of a state.
    """
    key_heads: tl.constexpr = HEADS // GROUP
    row, key_head = (tl.program_id(0) // key_heads).to(tl.int64), tl.program_id(0) % key_heads
    i, j, c = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_C)
    head, is_query, used = key_head * GROUP + c // 2, c % 2 == 1, c < 2 * GROUP
    g = tl.arange(0, BLOCK_C // 2)
    of_row = row * HEADS + key_head * GROUP + g
    # All that depends on nothing is asked for at once.
    kept = tl.load(kept_ptr + row)
    slot = tl.load(write_ptr + row).to(tl.int64)
    query = tl.load(q_ptr + row * stride_qr + key_head * stride_qh + i, mask=i < K, other=0.0)
    key = tl.load(k_ptr + row * stride_kr + key_head * stride_kh + i, mask=i < K, other=0.0)
    decay = tl.load(decay_ptr + row * HEADS + head, mask=used, other=0.0).to(tl.float32)
    product = products_ptr + (row * HEADS + head) * (2 * V) + tl.where(is_query, V, 0)
    mask = (j[:, None] < V) & used[None, :]
    total = tl.load(
        product[None, :] + j[:, None], mask=mask, other=0.0, eviction_policy="evict_first"
    )
    result = (j[:, None] < V) & (g[None, :] < GROUP)
    at = v_ptr + row * stride_vr + (key_head * GROUP + g[None, :]) * stride_vh + j[:, None]
    value = tl.load(at, mask=result, other=0.0, eviction_policy="evict_first").to(tl.float32)
    beta = tl.load(beta_ptr + of_row, mask=g < GROUP, other=0.0).to(tl.float32)
    if kept < 0:
        return
    states_ptr += slot * stride_slot
    tokens_ptr += slot * stride_slot * WORDS
    changes = tokens_ptr + key_head * (GROUP * K * V * WORDS)
    keys = changes + ROOM * V
    sums = states_ptr + (head + 1) * (K * V) - ROOM  # of the logs of decays, one for each token
    decay = tl.maximum(decay, _LEAST_DECAY)
    decay += tl.load(sums + kept - 1, mask=used & (kept > 0), other=0.0)
    q, k = query.to(tl.float32), key.to(tl.float32)
    squares_q, squares_k, with_itself = tl.reduce((q * q, k * k, k * q), 0, _add)
    norm_q = tl.rsqrt(squares_q + _EPSILON) * scale
    norm_k = tl.rsqrt(squares_k + _EPSILON)
    both = tl.where(is_query[None, :], query[:, None], key[:, None])
    norms = tl.where(is_query, norm_q, norm_k)
    total *= (tl.exp(decay) * norms)[None, :]
    for start in range(0, kept, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        before = tl.load(
            keys + t[:, None] * K + i[None, :],
            mask=(t[:, None] < kept) & (i[None, :] < K), other=0.0, eviction_policy="evict_first",
        )  # fmt: skip
        inner = (t[:, None] < kept) & used[None, :]
        since = tl.load(sums[None, :] + t[:, None], mask=inner, other=0.0)
        changed = ()
        for h in tl.static_range(GROUP):
            earlier = changes + h * (K * V * WORDS) + t[:, None] * V + j[None, :]
            there = (t[:, None] < kept) & (j[None, :] < V)
            changed += (tl.load(earlier, mask=there, other=0.0, eviction_policy="evict_first"),)
        weight = tl.dot(before, both, input_precision="ieee") * norms[None, :]
        weight = tl.where(inner, weight * tl.exp(decay[None, :] - since), 0.0)
        for h in tl.static_range(GROUP):
            of_head = tl.where(c[None, :] // 2 == h, weight, 0.0)
            of_head = _rounded(of_head, before.dtype)  # as attention's are
            total = tl.dot(tl.trans(changed[h]), of_head, total, input_precision="ieee")
    by_k, by_q = tl.split(tl.reshape(total, (BLOCK_V, BLOCK_C // 2, 2)))
    change = (value - by_k) * beta[None, :]
    out = by_q + with_itself * norm_k * norm_q * change
    tl.store(out_ptr + of_row[None, :] * V + j[:, None], out, mask=result)
    at = changes + g[None, :] * (K * V * WORDS) + kept * V + j[:, None]
    change *= norm_k  # for keys are kept as they came
    tl.store(at, _rounded(change, changes.dtype.element_ty), mask=result)
    tl.store(keys + kept * K + i, key, mask=i < K)
    tl.store(sums + kept, decay, mask=used & ~is_query)


@triton.jit
def _settle_kernel(
    states_ptr, tokens_ptr, read_ptr, write_ptr, kept_ptr, stride_layer, stride_slot, rows,
    ROOM: tl.constexpr, WORDS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, TURNS: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """The states of some sequences, far from each other, in the heads of one key head of a layer
    are written over the tokens they kept."""
    key_heads: tl.constexpr = HEADS // GROUP
    layer = tl.program_id(1).to(tl.int64) * stride_layer
    states_ptr += layer
    tokens_ptr += layer * WORDS
    stride = tl.cdiv(rows, TURNS)
    first, key_head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    turns = first + tl.arange(0, TURNS) * stride
    changes = tl.load(kept_ptr + turns, mask=turns < rows, other=0) > 0
    i, j = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    real = (i[:, None] < K) & (j[None, :] < V)
    turn = tl.max(tl.where(changes, turns, -1), 0)
    while turn >= 0:  # the next one below
        kept = tl.load(kept_ptr + turn)
        from_slot = tl.load(read_ptr + turn).to(tl.int64) * stride_slot
        to_slot = tl.load(write_ptr + turn).to(tl.int64) * stride_slot
        keys = tokens_ptr + to_slot * WORDS + key_head * (GROUP * K * V * WORDS) + ROOM * V
        for back in range(GROUP):  # the first head has the keys of all
            head = key_head * GROUP + GROUP - 1 - back
            place = (head * K + i[:, None]) * V + j[None, :]
            of_head = tokens_ptr + to_slot * WORDS + head * (K * V * WORDS)
            sums = states_ptr + to_slot + (head + 1) * (K * V) - ROOM
            decay = tl.load(sums + kept - 1)
            state = tl.load(states_ptr + from_slot + place, mask=real, other=0.0)
            state *= tl.exp(decay)
            for start in range(0, kept, BLOCK_T):
                t = start + tl.arange(0, BLOCK_T)
                there = t < kept
                mask = there[None, :] & (i[:, None] < K)
                key = tl.load(keys + t[None, :] * K + i[:, None], mask=mask, other=0.0)
                since = tl.load(sums + t, mask=there, other=0.0)
                weight = tl.where(there, tl.exp(decay - since), 0.0)
                mask = there[:, None] & (j[None, :] < V)
                change = tl.load(of_head + t[:, None] * V + j[None, :], mask=mask, other=0.0)
                key = key.to(tl.float32) * weight[None, :]
                state += tl.dot(key, change.to(tl.float32), input_precision="ieee")
            tl.debug_barrier()  # all have read what is written over
            tl.store(states_ptr + to_slot + place, state, mask=real)
        turn = tl.max(tl.where(changes & (turns < turn), turns, -1), 0)


@cache
def _beside(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for what runs beside the current one's kernels, of each device."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _warps(numbers: int, of_thread: int) -> int:
    return min(16, max(4, numbers // (32 * of_thread)))


def room_for_tokens(key_size: int, value_size: int, dtype: torch.dtype) -> int:
    """How many tokens a state's slot keeps: a key, a change, and the sum of their decays' logs."""
    numbers = key_size * value_size * torch.float32.itemsize
    return numbers // ((key_size + value_size) * dtype.itemsize + torch.float32.itemsize)


def delta_rule_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
    states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Apply the rule to one token of each of n sequences; their states go on by it.

    Queries and keys are made unit vectors, and queries divided by sqrt(K). A slot that is written
    may be another sequence's to read only if both are thrown away.

    Args:
        q, k: [n, key heads, K]; each head serves as many neighbouring heads of v.
        v: [n, heads, V].
        decay: [n, heads] or [n, heads, K], its logarithm.
        beta: [n, heads].
        states: [slots, heads, K, V] float32.
        read, write: [n], slots.
        kept: [n] int32, for decays that are one a head. A sequence with so many tokens in its slot
            `write`, 0 or more and fewer than `room_for_tokens`, keeps this one there, too, and
            leaves the state in its slot `read` as it is. With -1 its state is read from `read` and
            written to `write`.

    Returns:
        [n, heads, V] in v's dtype.
    """
    count, heads, v_size = v.shape
    key_heads, size = k.shape[1:]
    assert q.shape == k.shape and k.shape[0] == count and heads % key_heads == 0
    assert states.shape[1:] == (heads, size, v_size) and states.dtype == torch.float32
    assert states[0].is_contiguous() and beta.shape == (count, heads)
    assert decay.shape in ((count, heads), (count, heads, size))
    assert read.shape == write.shape == (count,)
    assert kept is None or (decay.dim() == 2 and kept.shape == (count,) and k.dtype == v.dtype)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    decay, beta = decay.contiguous(), beta.contiguous()
    out = torch.empty((count, heads, v_size), dtype=v.dtype, device=v.device)
    group, scale = heads // key_heads, size**-0.5
    block_k, block_v = (max(_LEAST, triton.next_power_of_2(x)) for x in (size, v_size))
    strides = (*q.stride()[:2], *k.stride()[:2])
    turns = _TURNS if kept is not None else 1
    beside = _beside(states.device) if kept is not None else None  # for it often finds no row
    if beside is not None:
        beside.wait_stream(torch.cuda.current_stream(states.device))
    with torch.cuda.stream(beside):
        _step_kernel[(triton.cdiv(count, turns) * heads,)](
            q, k, v, decay, beta, states, read, write, read if kept is None else kept, out,
            *strides, *v.stride()[:2], states.stride(0), scale, count,
            HEADS=heads, GROUP=group, K=size, V=v_size, DECAYS=1 if decay.dim() == 2 else size,
            KEEPS=kept is not None, TURNS=turns, BLOCK_K=block_k, BLOCK_V=block_v,
            num_warps=_warps(block_k * block_v, _NUMBERS),
        )  # fmt: skip
    if kept is None:
        return out
    products = torch.empty((count, heads, 2, v_size), dtype=torch.float32, device=v.device)
    parts = triton.cdiv(block_v, _BLOCK_VALUES)
    _start_kernel[(heads * triton.cdiv(count, _ROWS) * parts,)](
        q, k, states, read, kept, products, *strides, states.stride(0), count,
        HEADS=heads, GROUP=group, K=size, V=v_size, ROWS=_ROWS, BLOCK_P=min(block_k, _BLOCK_PART),
        V_PARTS=parts, BLOCK_V=block_v // parts, num_warps=_START_WARPS, num_stages=_START_STAGES,
    )  # fmt: skip
    tokens = states.view(v.dtype)
    is_small = v.dtype.itemsize == 2 and max(block_k, block_v) <= _NUMBERS
    _own_kernel[(count * key_heads,)](
        q, k, v, decay, beta, states, tokens, write, kept, products, out,
        *strides, *v.stride()[:2], states.stride(0), scale,
        ROOM=room_for_tokens(size, v_size, v.dtype), WORDS=tokens.shape[-1] // v_size,
        HEADS=heads, GROUP=group, K=size, V=v_size, BLOCK_T=_BLOCK_TOKENS,
        BLOCK_C=max(_COLUMNS, triton.next_power_of_2(2 * group)), BLOCK_K=block_k, BLOCK_V=block_v,
        num_warps=_OWN_WARPS if is_small else _OTHER_WARPS, num_stages=1,
        maxnreg=_OWN_REGISTERS if is_small else None,
    )  # fmt: skip
    if beside is not None:
        torch.cuda.current_stream(states.device).wait_stream(beside)
    return out


def settle(
    states: torch.Tensor, read: torch.Tensor, write: torch.Tensor, kept: torch.Tensor,
    key_heads: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Write the states of sequences over the tokens that they keep, in some layers.

    Args:
        states: [layers, slots, heads, K, V], each layer's as `delta_rule_step` takes them.
        read, write: [n], slots, as `delta_rule_step` takes them.
        kept: [n] int32, tokens that become the state; 0 or less where nothing is to be done.
        key_heads, dtype: of the keys.
    """
    layers, _, heads, size, v_size = states.shape
    assert states[0, 0].is_contiguous() and states.dtype == torch.float32
    tokens = states.view(dtype)
    block_k, block_v = (max(_LEAST, triton.next_power_of_2(x)) for x in (size, v_size))
    _settle_kernel[(triton.cdiv(len(kept), _SETTLING) * key_heads, layers)](
        states, tokens, read, write, kept, *states.stride()[:2], len(kept),
        ROOM=room_for_tokens(size, v_size, dtype), WORDS=tokens.shape[-1] // v_size,
        HEADS=heads, GROUP=heads // key_heads, K=size, V=v_size, TURNS=_SETTLING,
        BLOCK_T=_SETTLED_TOKENS, BLOCK_K=block_k, BLOCK_V=block_v,
        num_warps=_warps(block_k * block_v, _NUMBERS // 2),
    )  # fmt: skip
