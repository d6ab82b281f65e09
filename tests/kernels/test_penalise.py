"""The penalty kernel against its torch reference."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.sample import penalties as reference
from sharegen.kernels import penalise as kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("vocab_size", [37, 5003])
@pytest.mark.parametrize("with_prompt", [True, False])
@pytest.mark.parametrize("with_history", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_against_the_reference(
    vocab_size: int, with_prompt: bool, with_history: bool, dtype: torch.dtype
) -> None:
    rows = 7
    generator = torch.manual_seed(vocab_size)
    logits = (torch.randn(rows, vocab_size, generator=generator) * 3).to(dtype)
    logits[2, 5] = -torch.inf
    in_prompt = torch.rand(rows, vocab_size, generator=generator) < 0.3 if with_prompt else None
    history = None
    if with_history:
        history = torch.randint(vocab_size, (rows, 20), generator=generator)
        history[:, 5:10] = history[:, :5]
        for row in range(rows):
            history[row, row * 3 :] = -1
    table = torch.rand(rows, 3, generator=generator) * 2 + 0.1  # strided, as the state's are
    table[0] = torch.tensor([1.0, 0.0, 0.0])
    expected = reference.penalise(logits, in_prompt, history, *table.unbind(1))
    on_device = [
        None if array is None else array.to(DEVICE) for array in (logits, in_prompt, history)
    ]
    got = kernels.penalise(*on_device, *table.to(DEVICE).unbind(1))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-6, atol=1e-6)
    if not with_prompt:
        return
    assert torch.equal(got[0].cpu(), logits[0].float())


def test_rows_of_a_larger_table() -> None:
    logits = torch.randn(3, 90, generator=torch.manual_seed(0), device="cpu").to(DEVICE)
    seen = (torch.arange(6 * 90, device=DEVICE) % 3 == 0).view(6, 90)
    two = torch.full((3,), 2.0, device=DEVICE)
    nothing = torch.zeros(3, device=DEVICE)
    got = kernels.penalise(logits, seen[2:5], None, two, nothing, nothing)
    expected = reference.penalise(logits.cpu(), seen[2:5].cpu(), None, *[
        array.cpu() for array in (two, nothing, nothing)
    ])  # fmt: skip
    torch.testing.assert_close(got.cpu(), expected)


def test_no_rows() -> None:
    none = torch.empty(0, device=DEVICE)
    assert kernels.penalise(none.view(0, 9), None, None, none, none, none).shape == (0, 9)
