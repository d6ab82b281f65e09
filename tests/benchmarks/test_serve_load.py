"""A server is loaded and measured as a whole, with the bundled model."""

from __future__ import annotations

import pytest

from benchmarks.measurement import Measurement


@pytest.mark.slow
def test_a_load_by_both_clients_and_its_yardstick() -> None:
    from benchmarks.serve_load import Load, serve_load  # with clients that take a second

    load = Load("tinymath", 4, 4, 2, 2, "raw")
    *told, row = serve_load(load, [2], [1], [], ["--device=cpu"], "abcdef1")
    first, second, *_, call = told
    for each in (first, second):
        assert isinstance(each, dict) and each["tokens"] == 8
        assert each["prompt_tokens_computed"] < 0.8 * each["prompt_tokens"]
        assert each["client_ms_a_request"] >= 0 and each["engine_us_a_token"] > 0
    assert isinstance(call, dict) and call["ratio"] > 0 and call["cpu_ratio"] > 0
    assert isinstance(row, Measurement) and row.row == "serve-tinymath"
    assert len(row.numbers.latencies) == 1
