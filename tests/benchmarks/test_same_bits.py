"""Samples of engines of several sizes, compared as bits."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from benchmarks.card.machine import find_machine
from benchmarks.same_bits import SameBitsSettings, bench_same_bits, compare, price_row


def test_what_differs_is_counted() -> None:
    first = {(0, 0): ([1, 2, 3], -1.0), (0, 1): ([1, 2], -2.0), (1, 0): ([4], -0.5)}
    other = {(0, 0): ([1, 5, 3], -1.0), (0, 1): ([1, 2], -2.5), (1, 0): ([4], -0.5)}
    assert compare(first, first)["other_bits"] == 0
    assert compare(first, other) == {
        "samples": 3, "other_tokens": 1, "other_bits": 2, "first_parting": 1
    }  # fmt: skip


@pytest.mark.turn(6)
def test_on_a_cpu_all_are_the_same(tmp_path: Path) -> None:
    LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=256,
    ).save_pretrained(tmp_path)  # fmt: skip
    asked = SameBitsSettings(
        str(tmp_path), ["32,8,4,5,20"], [20, 3], ["0,8,6,1,4"], small_cache=9000, cache=1 << 20,
        device="cpu", repeats=0, any_tree=True,
    )  # fmt: skip
    found = list(bench_same_bits(asked))
    assert [(each["rows"], each["deterministic"] + each["any_tree"]) for each in found] == [
        (20, 1), (20, 1), (3, 1), (20, 1), (20, 2), (20, 2), (20, 0), (20, 0)
    ]  # fmt: skip
    free = [found.pop(4), found.pop(4)]
    assert all(each["other_tokens"] == 0 for each in free)
    assert all(each["other_bits"] == 0 for each in found)
    assert [each["preemptions"] > 0 for each in found] == [False] * 3 + [True] + [False] * 2
    row = price_row(
        asked,
        [*found[:4], *free, *found[4:]],
        find_machine("1234567"),
        "python -m benchmarks same-bits x",
    )
    assert row is not None and row.card.kind == "cpu"
    shared, alone = row.numbers.prices
    assert (shared.workload, shared.samples, shared.differing) == ("32,8,4,5,20", 20, 0)
    assert shared.any_tree == free[0]["tokens_per_second"]
    assert alone.differing is None  # of one deterministic engine alone
    free_alone = price_row(asked, [*found[:3], *free], find_machine("1234567"), "x")
    assert free_alone is not None and free_alone.row.endswith("-any-tree")
    assert [each.plain for each in free_alone.numbers.prices or ()] == [None, None]
    assert price_row(asked, found[:-2], find_machine("1234567"), "x") is None
