"""Requests that arrive while an engine runs: what they wait for, and how much KV they hold."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.chunk_arrivals import Load, Sweep, charts, measure
from benchmarks.papers.experiment import Settings

BLOCK_MB = (
    2 * 2 * 2 * 32 * 4 * 16 / 1e6
)  # layers, keys and values, heads, their size, bytes, tokens


def test_prompts_share_all_but_a_block() -> None:
    first, second = Load(48, 5, ()).requests(2, 100)
    prompts = first.prompt_token_ids, second.prompt_token_ids
    assert prompts[0][:32] == prompts[1][:32] and prompts[0][32:] != prompts[1][32:]
    assert [len(prompt) for prompt in prompts] == [48, 48]


@pytest.mark.slow
def test_peaks_and_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    """Six requests of 70 tokens, five blocks each, come as good as at once, then one by one.

    What all share are three blocks. The first prompt has them in its own, for nothing was known of
    the others when it came; the second stores them, and the rest read these.
    """
    loads = (Load(4091, 6, (1.0,)), Load(64, 6, (1e6, 50.0)))
    sweep = Sweep("tiny", loads, count=6, batch=4)
    rows = list(measure(sweep, Settings(torch.device("cpu"), torch.float32, repeats=2)))
    where = [(row["way"], row["rate"]) for row in rows]
    assert where == [(way, rate) for way in ("shared", "not shared") for rate in (1e6, 50.0)]
    shared, alone = rows[0], rows[2]
    assert shared["peak_batch"] == alone["peak_batch"] == 4
    assert alone["peak_kv_mb"] == pytest.approx(BLOCK_MB * 4 * 5)
    assert shared["peak_kv_mb"] == pytest.approx(BLOCK_MB * (5 + 3 + 3 * 2))
    for row in rows:
        assert 0 < row["latency_ms"] <= 1e3 * row["seconds"] / 6
    left_out = "prompts of 4,091 is left out: it takes 4,097 tokens, the context holds 4,096"
    assert capsys.readouterr().err.splitlines() == [
        f"tiny, {way}, {left_out}" for way in ("shared", "not shared")
    ]
    [chart] = charts(rows)
    assert [len(series.points) for series in chart.series] == [2, 2]
