"""FlashInfer's parts put together for a tree: what they are asked for, and what is made of it.

The package runs on a GPU alone. Here its interface stands in plain torch, as its documentation has
it: pages by (indptr, indices, last_page_len), queries by indptr, and states (V, S) that are merged.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.papers.pat_trees import Levels
from sharegen.bench.attention_case import Case, Tree
from sharegen.bench.attention_tensors import Tensors
from sharegen.bench.cascade import by_row, cascade_step
from sharegen.bench.layer import Layer
from sharegen.bench.peer import FlashInfer

CPU = torch.device("cpu")
SMALL = Case(4, 2, 40, 20, 3, 2, 17, head_size=32)
DEEP = Levels(4, 2, (2, 2, 4, 8), (20, 5, 33), 17, head_size=32)

State = tuple[torch.Tensor, torch.Tensor]


class Prefill:
    """Of queries [rows, heads, size] those of sequence i are qo_indptr[i] to qo_indptr[i + 1]."""

    def __init__(self, workspace: torch.Tensor, layout: str, **how: Any) -> None:
        assert workspace.dtype == torch.uint8 and layout == "NHD"

    def plan(
        self, queries: torch.Tensor, indptr: torch.Tensor, indices: torch.Tensor,
        last_page_len: torch.Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
        page_size: int, *, causal: bool, q_data_type: torch.dtype, kv_data_type: torch.dtype,
    ) -> None:  # fmt: skip
        assert not causal and q_data_type == kv_data_type
        assert all(x.dtype == torch.int32 for x in (queries, indptr, indices, last_page_len))
        assert len(indptr) == len(queries) == len(last_page_len) + 1 and indptr[0] == 0
        assert len(indices) == indptr[-1] and num_qo_heads % num_kv_heads == 0
        assert bool(((last_page_len >= 1) & (last_page_len <= page_size)).all())
        self.queries, self.group = queries.tolist(), num_qo_heads // num_kv_heads
        self.shape = (page_size, num_kv_heads, head_dim)
        self.pages = [
            (indices[first:end].long(), (end - first - 1) * page_size + last)
            for first, end, last in zip(
                indptr[:-1].tolist(), indptr[1:].tolist(), last_page_len.tolist(), strict=True
            )
        ]

    def run(self, q: torch.Tensor, cache: State, *, return_lse: bool) -> State:
        assert return_lse and cache[0].shape[1:] == self.shape
        outs, sums = [], []
        for i, (pages, length) in enumerate(self.pages):
            rows = q[self.queries[i] : self.queries[i + 1]].float()
            k, v = (x[pages].flatten(0, 1)[:length].float() for x in cache)
            k, v = (x.repeat_interleave(self.group, 1) for x in (k, v))
            scores = torch.einsum("qhd,thd->qht", rows, k) * q.shape[-1] ** -0.5
            sums.append(scores.logsumexp(-1) / torch.log(torch.tensor(2.0)))
            outs.append(torch.einsum("qht,thd->qhd", scores.softmax(-1), v).to(q.dtype))
        assert sum(map(len, outs)) == len(q)
        return torch.cat(outs), torch.cat(sums)


class Decode(Prefill):
    """One query a sequence."""

    def plan(self, indptr: torch.Tensor, *pages: Any, **types: Any) -> None:
        super().plan(torch.arange(len(indptr), dtype=torch.int32), indptr, *pages, causal=False,
                     **types)  # fmt: skip


def merge(v: torch.Tensor, s: torch.Tensor, v_other: torch.Tensor, s_other: torch.Tensor) -> None:
    top = torch.maximum(s, s_other)
    one, other = (s - top).exp2(), (s_other - top).exp2()
    v.copy_((v * one[..., None] + v_other * other[..., None]) / (one + other)[..., None])
    s.copy_(top + (one + other).log2())


PACKAGE = SimpleNamespace(
    BatchPrefillWithPagedKVCacheWrapper=Prefill,
    BatchDecodeWithPagedKVCacheWrapper=Decode,
    merge_state_in_place=merge,
)


@pytest.mark.parametrize(
    "case",
    [SMALL, replace(SMALL, few=0), replace(SMALL, problem=0), replace(SMALL, suffix=0), DEEP],
    ids=str,
)
def test_the_parts_compute_the_tree(case: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", PACKAGE)
    tensors = Tensors(case, CPU, dtype=torch.float32)
    out = cascade_step(tensors)()
    assert tensors.error(by_row(tensors, out)) < 1e-5
    assert tensors.error(out) > 0.1  # whose rows are in tree order


def test_a_result_that_is_wrong_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", PACKAGE)
    monkeypatch.setattr(Layer, "flashinfer", lambda layer: cascade_step(layer.tensors))
    layer, peer = Layer(SMALL, CPU, torch.float32), FlashInfer(True)
    assert peer.step(layer) is not None and capsys.readouterr().err == ""
    forgets = SimpleNamespace(**vars(PACKAGE) | {"merge_state_in_place": lambda *states: None})
    monkeypatch.setitem(sys.modules, "flashinfer", forgets)
    assert peer.step(layer) is None
    [line] = capsys.readouterr().err.splitlines()
    assert str(SMALL) in line and "FlashInfer is left out: its results are off by " in line
