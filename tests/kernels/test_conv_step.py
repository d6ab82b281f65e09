"""States go on by tokens where they lie: the same numbers as by transformers' own code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN

from sharegen.kernels import reference_states
from sharegen.kernels.conv_step import conv_chunk, conv_step
from tests.kernels.trees import DEVICE, each_dtype

CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
READ = torch.tensor([3, 0, 8, 8, 5], device=DEVICE)  # two go on from one parent's
WRITE = torch.tensor([3, 1, 7, 2, 5], device=DEVICE)
POSITION = torch.tensor([0, 6, 7, 7, 4097], device=DEVICE)
each_step = pytest.mark.parametrize("step", [conv_step, reference_states.convolve])


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@pytest.mark.turn(3)
@each_dtype
@each_step
@pytest.mark.parametrize("sizes", [(4, 4), (3, 4), (3, 3), (2, 2), (1, 2), (5, 2)], ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_step(
    step: Any, sizes: tuple[int, int], has_bias: bool, activation: str | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    (length, size), channels = sizes, 301
    x = normal(5, 1, channels + 3).to(dtype)[..., :channels].transpose(1, 2)  # of a product
    states = normal(9, length, channels).to(dtype)
    weight = normal(channels, size).to(dtype)
    bias = normal(channels).to(dtype) if has_bias else None
    expected = states.clone()
    wanted = naive(x, expected, READ, WRITE, POSITION, weight, bias, activation)
    out = step(x, states, READ, WRITE, POSITION, weight, bias, activation)
    assert out.dtype == dtype and out.shape == x.shape
    torch.testing.assert_close(out.double(), wanted, atol=CLOSE[dtype], rtol=CLOSE[dtype])
    assert torch.equal(states, expected)  # other slots as well


@each_step
def test_a_scratch_slot_and_any_strides(step: Any) -> None:
    torch.manual_seed(0)
    x, weight, bias = normal(40, 4).T[:, :, None], normal(40, 3), normal(40)
    pool = normal(6, 2, 3, 40)
    before, states = pool.clone(), pool[:, 1]  # a layer's of all
    expected = states.clone()
    read, write, position = torch.tensor([[1, 4, 0, 0], [1, 2, 5, 5], [8, 1, 0, 0]], device=DEVICE)
    wanted = naive(x, expected, read, write, position, weight, bias, "swish")
    out = step(x, states, read, write, position, weight, bias, "swish")
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(states[:5], expected[:5])
    assert torch.equal(pool[:, 0], before[:, 0])


@each_dtype
@pytest.mark.parametrize("chunk", [conv_chunk, reference_states.convolve])
@pytest.mark.parametrize("sizes", [(4, 4), (3, 4), (2, 2), (1, 2), (5, 2)], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 16, 35])
@pytest.mark.turn(8)
def test_tokens_of_prompts(
    chunk: Any, sizes: tuple[int, int], tokens: int, dtype: torch.dtype
) -> None:
    """As many steps of one token each."""
    torch.manual_seed(0)
    (length, size), channels = sizes, 301
    x = normal(5, tokens, channels + 3).to(dtype)[..., :channels].transpose(1, 2)
    states = normal(9, length, channels).to(dtype)
    weight, bias = normal(channels, size).to(dtype), normal(channels).to(dtype)
    expected, wanted = states.clone(), []
    read, write = READ.clone(), torch.tensor([4, 1, 7, 2, 6], device=DEVICE)
    for token in range(tokens):
        at = POSITION + token
        here = x[..., token : token + 1]
        wanted.append(naive(here, expected, read, write, at, weight, bias, "silu"))
        read = write
    out = chunk(x, states, READ, write, POSITION, weight, bias, "silu")
    assert out.dtype == dtype and out.shape == x.shape
    close = CLOSE[dtype]
    torch.testing.assert_close(out.double(), torch.cat(wanted, -1), atol=close, rtol=close)
    assert torch.equal(states, expected)


@each_step
def test_rounds_where_transformers_does(step: Any) -> None:
    """To the weights' type as a column is read, before the activation, and after it."""
    torch.manual_seed(0)
    x, weight = normal(5, 70, 1), normal(70, 4).half()
    states = normal(9, 4, 70)
    expected = states.clone()
    wanted = naive(x, expected, READ, WRITE, POSITION, weight, None, "silu", is_rounded=True)
    out = step(x, states, READ, WRITE, POSITION, weight, None, "silu")
    assert out.dtype == states.dtype == torch.float32
    assert torch.equal(out, out.half().float())
    assert torch.equal(states, expected)
    assert (out.double() == wanted).double().mean() > 0.98  # others round a halfway sum


@pytest.mark.parametrize(
    "wrong",
    [
        {"activation": "gelu"},
        {"x": torch.zeros(2, 8, 2)},
        {"x": torch.zeros(2, 7, 1)},
        {"x": torch.zeros(2, 8, 1, dtype=torch.float64)},
        {"states": torch.zeros(3, 2, 8)},
        {"states": torch.zeros(3, 8, 4).transpose(1, 2)},
        {"weight": torch.zeros(8, 4, dtype=torch.int8)},
        {"bias": torch.zeros(8, dtype=torch.float16)},
        {"bias": torch.zeros(1)},
        {"read": torch.zeros(2, dtype=torch.int32)},
        {"write": torch.zeros(3, dtype=torch.int64)},
        {"position": torch.zeros(3, dtype=torch.int64)},
        {"position": torch.zeros(2, dtype=torch.int32)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_it_does_not_take(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "x": torch.zeros(2, 8, 1), "states": torch.zeros(3, 4, 8), "read": torch.tensor([0, 1]),
        "write": torch.tensor([0, 2]), "position": torch.tensor([5, 0]),
        "weight": torch.zeros(8, 4), "bias": None,
        "activation": None,
    }  # fmt: skip
    with pytest.raises(AssertionError):
        conv_step(**right | wrong)


def naive(
    x: torch.Tensor, states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    position: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
    *, is_rounded: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`causal_conv1d_update` of transformers, sequence by sequence; adds in float64."""
    outs, found = [], []
    for row in range(len(x)):
        oldest = int(position[row]) % states.shape[1]
        state = states[read[row]].roll(-oldest, 0).T
        window = torch.cat([state, x[row].to(weight.dtype).to(states.dtype)], dim=-1)
        found.append(window[:, 1:].T.roll(oldest + 1, 0))
        window = window.to(weight.dtype)
        out = (window[:, -weight.shape[1] :].double() * weight.double()).sum(-1)
        out = out if bias is None else out + bias.double()
        out = out.to(weight.dtype) if is_rounded else out
        outs.append(out if activation is None else ACT2FN[activation](out))
    for slot, state in zip(write, found, strict=True):
        states[slot] = state
    return torch.stack(outs)[..., None].double()
