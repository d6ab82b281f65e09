"""States go on by one token where they lie: the same numbers as by transformers' own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sharegen.kernels import delta_rule, reference_states
from sharegen.kernels.delta_rule import delta_rule_step
from tests.kernels.trees import DEVICE, each_dtype


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@pytest.mark.turn(3)
@each_dtype
@pytest.mark.parametrize("step", [delta_rule_step, reference_states.delta_rule_step])
@pytest.mark.parametrize("heads", [(2, 2), (2, 6)])
@pytest.mark.parametrize("sizes", [(16, 40), (24, 16)])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_step(
    step: object, heads: tuple[int, int], sizes: tuple[int, int], is_wide: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    rows, (key_heads, count), (size, v_size) = 5, heads, sizes
    both = normal(rows, 2 * key_heads, size + 3).to(dtype)[..., :size]  # parts of one product
    q, k = both[:, :key_heads], both[:, key_heads:]
    v, beta = normal(rows, count, v_size).to(dtype), normal(rows, count).sigmoid()
    decay = -normal(rows, count, *([size] if is_wide else [])).abs()
    states = normal(9, count, size, v_size)
    read = torch.tensor([3, 0, 8, 8, 5], device=DEVICE)  # two go on from one parent's
    write = torch.tensor([3, 1, 7, 2, 5], device=DEVICE)
    expected, before = states.clone(), states.clone()
    wanted = naive(q, k, v, decay, beta, expected, read, write)
    out = step(q, k, v, decay, beta, states, read, write)  # type: ignore[operator]
    assert out.dtype == dtype
    close = {"atol": 2e-3, "rtol": 2e-3} if dtype == torch.float16 else {"atol": 1e-5, "rtol": 1e-5}
    if dtype == torch.bfloat16:
        close = {"atol": 2e-2, "rtol": 2e-2}
    torch.testing.assert_close(out.float(), wanted, **close)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    others = [slot for slot in range(9) if slot not in write.tolist()]
    assert torch.equal(states[others], before[others])


@each_dtype
@pytest.mark.parametrize("kernels", [delta_rule, reference_states])
@pytest.mark.parametrize(("heads", "sizes"), [((2, 6), (16, 24)), ((1, 1), (72, 16))])
@pytest.mark.turn(5)
@pytest.mark.slow
def test_tokens_that_are_kept(
    kernels: Any, heads: tuple[int, int], sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """From states that several go on from to own ones, at once for some and settled for all."""
    torch.manual_seed(0)
    rows, (key_heads, count), (size, v_size) = 7, heads, sizes
    states = normal(11, count, size, v_size)
    start = torch.tensor([0, 1, 1, 1, 0, 0, 2], device=DEVICE)
    own = torch.arange(3, 10, device=DEVICE)  # and 10 for those that have not begun
    begins = torch.arange(rows, device=DEVICE, dtype=torch.int32) % 3  # after others' first tokens
    room = kernels.room_for_tokens(size, v_size, dtype)
    expected, before = states.clone(), states.clone()
    read = start.clone()
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for step in range(room + 4):
        q, k = (normal(rows, key_heads, size).to(dtype) for _ in "qk")
        v, beta = normal(rows, count, v_size).to(dtype), normal(rows, count).sigmoid()
        decay = -normal(rows, count).abs() * 0.1
        output = step - begins
        live = output >= 0
        wanted = naive(q, k, v, decay, beta, expected, read, torch.where(live, own, 10))
        read = torch.where(live, own, read)
        kept = torch.where(output < room, output, -1).int()
        is_settled = (begins == 1) & (output > 2)  # these were before there was no room
        kept = torch.where(live, torch.where(is_settled, -1, kept), 0)
        place = torch.where(live, own, 10)
        from_slot = torch.where(kept >= 0, start, place)
        out = kernels.delta_rule_step(q, k, v, decay, beta, states, from_slot, place, kept)
        difference = (out.float() - wanted)[live].abs().max() / wanted[live].abs().max()
        assert difference < bound
        full = (kept + 1 == room) | ((begins == 1) & (output == 2))
        settling = torch.where(live & full, kept + 1, 0).int()
        kernels.settle(states[None], start, place, settling, key_heads, dtype)
    assert torch.equal(states[:3], before[:3])
    torch.testing.assert_close(states[3:10], expected[3:10], atol=bound, rtol=bound)


@each_dtype
@pytest.mark.parametrize("kernels", [delta_rule, reference_states])
@pytest.mark.slow
def test_layers_that_settle_together(kernels: Any, dtype: torch.dtype) -> None:
    """And a key that is nothing, and a long one: changes, or weights, beyond what float16 holds."""
    torch.manual_seed(0)
    states = normal(3, 6, 4, 16, 16)
    start, own = torch.tensor([0, 1], device=DEVICE), torch.tensor([3, 5], device=DEVICE)
    for layer in states:
        for step in range(3):
            q, k = (normal(2, 2, 16).to(dtype) for _ in "qk")
            k[0, 0] *= step != 1
            k[0, 1] *= 20000 if step == 0 else 1
            v = normal(2, 4, 16).to(dtype) * 100
            decay, beta = -normal(2, 4).abs(), normal(2, 4).sigmoid()
            kept = torch.full((2,), step, dtype=torch.int32, device=DEVICE)
            out = kernels.delta_rule_step(q, k, v, decay, beta, layer, start, own, kept)
            assert out.isfinite().all()
    apart, settling = states.clone(), torch.tensor([3, 0], dtype=torch.int32, device=DEVICE)
    kernels.settle(states, start, own, settling, 2, dtype)
    for layer in apart:
        kernels.settle(layer[None], start, own, settling, 2, dtype)
    assert torch.equal(states.view(torch.int32), apart.view(torch.int32))
    assert states[:, 3].isfinite().all()


def naive(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
    states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Sequence by sequence, head by head; in float64."""
    out = torch.empty(v.shape, device=v.device)
    found = {}
    for row in range(len(v)):
        for head in range(v.shape[1]):
            of = head * k.shape[1] // v.shape[1]
            unit = [x[row, of].double() for x in (q, k)]
            query, key = (x / (x.square().sum() + 1e-6).sqrt() for x in unit)
            state = states[read[row], head].double()
            state = state * decay[row, head].double().exp().reshape(-1, 1)
            change = (v[row, head].double() - state.T @ key) * beta[row, head].double()
            state = state + torch.outer(key, change)
            found[row, head] = state
            out[row, head] = (state.T @ query / len(query) ** 0.5).float()
    for (row, head), state in found.items():
        states[write[row], head] = state.float()
    return out
