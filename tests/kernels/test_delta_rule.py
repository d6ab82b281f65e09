"""States go on by one token where they lie: the same numbers as by transformers' own code."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels import reference
from sharegen.kernels.delta_rule import delta_rule_step
from tests.kernels.trees import DEVICE, each_dtype


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@each_dtype
@pytest.mark.parametrize("step", [delta_rule_step, reference.delta_rule_step])
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
