"""Steps on the states of mixers in their slots, in plain torch: what the kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

_EPSILON = 1e-6  # of the norm of queries and keys, as in transformers


def convolve(
    x: Tensor, states: Tensor, read: Tensor, write: Tensor, position: Tensor,
    weight: Tensor, bias: Tensor | None, activation: str | None,
) -> Tensor:  # fmt: skip
    """Convolve some tokens of sequences with states in their slots: see `conv_step.py`."""
    assert activation in (None, "silu", "swish")
    columns, tokens, size = states.shape[1], x.shape[2], weight.shape[-1]
    order = position[:, None] + torch.arange(columns, device=x.device)
    earlier = states[read[:, None], order % columns].mT
    window = torch.cat([earlier, x], dim=-1).to(weight.dtype)
    inputs = torch.cat([earlier, x.to(weight.dtype).to(states.dtype)], dim=-1)
    states[write[:, None], (order + tokens) % columns] = inputs[..., -columns:].mT
    out = conv1d(window[..., 1 - size - tokens :], weight[:, None], bias, groups=len(weight))
    return (out if activation is None else silu(out)).to(x.dtype)


def room_for_tokens(key_size: int, value_size: int, dtype: torch.dtype) -> int:
    """How many tokens a state's slot keeps: a key, a change, and the sum of their decays' logs."""
    return key_size * value_size * 4 // ((key_size + value_size) * dtype.itemsize + 4)


def delta_rule_step(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor,
    states: Tensor, read: Tensor, write: Tensor, kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Apply the gated delta rule to one token, with states in their slots: see `delta_rule.py`."""
    group = v.shape[1] // k.shape[1]
    query, key = (_unit(x).repeat_interleave(group, 1)[..., None] for x in (q, k))
    query = query / k.shape[-1] ** 0.5
    out = torch.empty_like(v, dtype=torch.float32)
    keeps = torch.zeros_like(read, dtype=torch.bool) if kept is None else kept >= 0
    whole = ~keeps
    wide = (v.shape[1], 1 if decay.dim() == 2 else decay.shape[2])
    state = states[read[whole]] * decay[whole].float().exp().reshape(-1, *wide, 1)
    change = (v[whole].float() - (state * key[whole]).sum(-2)) * beta[whole].float()[..., None]
    state = state + key[whole] * change[..., None, :]
    states[write[whole]] = state
    out[whole] = (state * query[whole]).sum(-2)
    for row in keeps.nonzero()[:, 0].tolist():
        assert kept is not None
        tokens = _Tokens(states[int(write[row])], k.shape[1], k.dtype)
        count = int(kept[row])
        sums = decay[row].float().clamp(min=-1e4)
        if count:
            sums = sums + tokens.sums[:, count - 1]
        state = tokens.state(states[int(read[row])], count, sums)
        change = (v[row].float() - (state * key[row]).sum(-2)) * beta[row].float()[:, None]
        out[row] = ((state + key[row] * change[:, None]) * query[row]).sum(-2)
        tokens.keys[:, count] = k[row]
        tokens.changes[:, count] = change.to(v.dtype)
        tokens.sums[:, count] = sums
    return out.to(v.dtype)


def settle(
    states: Tensor, read: Tensor, write: Tensor, kept: Tensor, key_heads: int, dtype: torch.dtype
) -> None:
    """Write the states of sequences over the tokens that they keep: see `delta_rule.py`."""
    for row in (kept > 0).nonzero()[:, 0].tolist():
        slot, count = int(write[row]), int(kept[row])
        for layer in states:
            tokens = _Tokens(layer[slot], key_heads, dtype)
            sums = tokens.sums[:, count - 1].clone()
            layer[slot] = tokens.state(layer[int(read[row])], count, sums)


class _Tokens:
    """What lies in the slot of a sequence that keeps its tokens; slot: [heads, K, V].

    changes: [heads, room, V]; keys: [key heads, room, K]; sums: [heads, room].
    """

    def __init__(self, slot: Tensor, key_heads: int, dtype: torch.dtype) -> None:
        heads, size, v_size = slot.shape
        room = room_for_tokens(size, v_size, dtype)
        flat = slot.flatten(1).view(dtype)
        self.group = heads // key_heads
        self.changes = flat[:, : room * v_size].unflatten(1, (room, v_size))
        keys = flat[:: self.group, room * v_size : room * (v_size + size)]
        self.keys = keys.unflatten(1, (room, size))
        self.sums = slot.flatten(1)[:, -room:]

    def state(self, start: Tensor, count: int, sums: Tensor) -> Tensor:
        """The state [heads, K, V] with `count` of the tokens, decayed by what `sums` [heads] says.

        start: [heads, K, V] where they begin.
        """
        since = (sums[:, None] - self.sums[:, :count]).exp()
        keys = _unit(self.keys[:, :count]).repeat_interleave(self.group, 0) * since[..., None]
        added = keys.transpose(1, 2) @ self.changes[:, :count].float()
        return start * sums.exp()[:, None, None] + added


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x * (x.square().sum(-1, keepdim=True) + _EPSILON).rsqrt()
