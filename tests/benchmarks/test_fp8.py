"""FP8 as a measurement: needles against float64, and one layer after another."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from benchmarks import fp8
from benchmarks.commands import app
from benchmarks.fp8_layers import WAYS, layer_errors
from benchmarks.fp8_needles import DEPTHS, PLACES, find_needles
from sharegen.cli import main
from sharegen.engine.execute.attention import ReferenceAttention
from sharegen.engine.execute.back_end import Attention
from sharegen.engine.execute.kernel_attention import KernelAttention
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.fp8.products import EMULATE
from sharegen.kernels.cost import CostModel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = LayerSpec(4, 2, 64, 64, 64**-0.5)
TINY = LlamaConfig(
    hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2,
    initializer_range=0.1,
)  # fmt: skip


def test_needles_are_found_at_every_depth_and_what_is_off_is_rounding() -> None:
    for length in (37, 1201):
        found = list(find_needles(length, DEVICE, torch.float32, SMALL))
        assert [(each.kv, each.place, each.depth) for each in found] == [
            (kv, place, depth) for kv in ("auto", "fp8") for place in PLACES for depth in DEPTHS
        ]
        for each in found:
            assert each.needles == each.heads == 4
            assert each.arithmetic < 1e-5
            if each.kv == "auto":
                assert each.error == each.arithmetic
            else:
                assert 0.01 < each.error <= each.worst < 1 / 16


def test_a_needle_that_is_not_read_is_missed() -> None:
    class WithoutTheLast(ReferenceAttention):
        def decode(self, *step: Any) -> Any:
            *where, position = step
            return super().decode(*where, position - 1)

    def made(layers: list[LayerSpec], cache: KVCache, *sizes: int) -> Attention:
        return WithoutTheLast(layers, cache)

    for each in find_needles(70, torch.device("cpu"), torch.float32, SMALL, made):
        is_missed = each.place == "own tokens" and each.depth == 1
        assert each.needles == (0 if is_missed else 4)
        assert (each.error > 0.5) == is_missed


@pytest.mark.slow
def test_needles_by_the_kernels() -> None:
    kernels = partial(KernelAttention, costs=CostModel())
    for each in find_needles(70, DEVICE, torch.float16, SMALL, kernels):
        assert each.needles == 4 and each.arithmetic < 3e-3


def test_errors_of_layers_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")
    first, second = layer_errors(TINY, 2, 24, DEVICE)
    assert (first.layer, second.layer) == (1, 2)
    for found in (first, second):
        assert list(found.own) == list(found.total) == list(WAYS)
        for errors in (found.own, found.total):
            assert 0 < errors["bfloat16"] < errors["FP8 KV"] < 0.2
            assert errors["bfloat16"] < errors["FP8 weights"] < errors["both"] < 0.3
    assert second.total["bfloat16"] > first.total["bfloat16"]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(fp8.bench_needles([20], dtype="float32", device="cpu", seed=0))
    assert len(lines) == 2 * len(PLACES) * len(DEPTHS)
    assert {(line["length"], line["needles"]) for line in lines} == {(20, 32)}
    monkeypatch.delenv(EMULATE, raising=False)
    for wrong, told in [
        (["fp8-layers", "--layers", "1", "--device", "cpu"], "FP8 weights need a GPU with FP8"),
        (["fp8-layers", "--layers", "0"], "--layers"),
        (["fp8-needles", "--lengths", "x"], "--lengths"),
        (["fp8-needles", "--device", "cpux"], "cpux"),
    ]:
        with pytest.raises(SystemExit) as exit:
            main(wrong, app)
        assert exit.value.code == 2 and told in capsys.readouterr().err
