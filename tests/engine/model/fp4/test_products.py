"""Products of experts in MXFP4, and who has none."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from sharegen.engine.model.fp4 import products
from sharegen.engine.model.fp4.numbers import widened
from sharegen.engine.model.fp4.products import check_fp4_products, multiply_fp4_groups
from sharegen.errors import UsageError
from sharegen.kernels.fp4_words import pack

GPU = torch.device("cuda", 0)
ENDS = torch.tensor([3, 3, 7, 8], dtype=torch.int32)


def stored() -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales of four weights of 48 x 160."""
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(256, (4, 48, 80), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(118, 129, (4, 48, 5), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_multiplied_by_the_weight_of_its_group(dtype: torch.dtype) -> None:
    blocks, scales = stored()
    x = torch.randn(5, 160).to(dtype)
    which = torch.tensor([4, 0, 0, 1, 3, 2, 2, 4])
    found = multiply_fp4_groups(x, *pack(blocks, scales), ENDS, which)
    weights = widened(blocks, scales)[torch.tensor([0, 0, 0, 2, 2, 2, 2, 3])]
    expected = torch.einsum("tk,tnk->tn", x[which].float(), weights)
    assert found.dtype is dtype
    error = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found.float() - expected).norm() <= error * expected.norm()
    in_order = multiply_fp4_groups(x[which], *pack(blocks, scales), ENDS)
    assert torch.equal(found, in_order)
    nothing = multiply_fp4_groups(x[:0], *pack(blocks, scales), torch.zeros_like(ENDS))
    assert nothing.shape == (0, 48)


@pytest.mark.slow
def test_the_operator_is_the_kernel() -> None:
    """In Triton's interpreter, where there is no GPU."""
    words, scales = pack(*stored())
    x, which = torch.randn(5, 160), torch.tensor([4, 0, 0, 1, 3, 2, 2, 4])
    for rows, index in ((x, which), (x[which], None), (x.t().contiguous().t()[which], None)):
        given = (rows, index, words, scales, ENDS)
        found = torch.ops.sharegen.fp4_groups(*given)
        torch.testing.assert_close(found, multiply_fp4_groups(rows, words, scales, ENDS, index))
        torch.library.opcheck(products._fp4_groups, given, test_utils="test_faketensor")


@dataclass
class Card:
    """What torch says of a GPU that is not there."""

    capability: tuple[int, int]

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: self.capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some card")


def test_a_gpu_that_cannot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(dtype: torch.dtype = torch.bfloat16) -> str:
        with pytest.raises(UsageError) as refused:
            check_fp4_products(GPU, dtype)
        said = str(refused.value)
        assert said.endswith(": leave out --quantization mxfp4, and weights are dequantised")
        return said

    Card((8, 9)).put(monkeypatch)
    assert "here: Some card has compute capability 8.9, and 9.0 is the least" in refusal()
    Card((9, 0)).put(monkeypatch)
    assert "a GPU does it in bfloat16, and the dtype is float16" in refusal(torch.float16)
    monkeypatch.setattr(products, "find_spec", lambda name: None)
    assert "here: it needs Triton" in refusal()
    check_fp4_products(torch.device("cpu"), torch.float16)


def test_a_trial_tells_wrong_products_and_what_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert products._trial(cpu) is None
    right = products.multiply_fp4_groups

    def with_a_wrong_row(*given: torch.Tensor) -> torch.Tensor:
        out = right(*given)
        out[1] = out[2]
        return out

    monkeypatch.setattr(products, "multiply_fp4_groups", with_a_wrong_row)
    assert products._trial(cpu) == "this GPU's products are not right"

    def raising(*given: torch.Tensor) -> torch.Tensor:
        from triton.runtime.errors import OutOfResources

        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(products, "multiply_fp4_groups", raising)
    assert "shared memory" in (products._trial(cpu) or "")


def test_products_without_numbers_have_their_sizes() -> None:
    words, scales = (part.to("meta") for part in pack(*stored()))
    x, ends = torch.empty(5, 160, device="meta"), ENDS.to("meta")
    assert multiply_fp4_groups(x, words, scales, ends).shape == (5, 48)
    expected = functional.linear(x, torch.empty(48, 160, device="meta"))
    assert multiply_fp4_groups(x, words, scales, ends).dtype == expected.dtype
