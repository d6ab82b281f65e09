from __future__ import annotations

from sharegen.results.journal.totals import add
from sharegen.results.screen.kv_use import kv_rows, wasted_share

EARLY = {"peak_kv": {"reserved": 50, "used": 20}, "kv_in_steps": {"reserved": 100, "used": 60}}
LATE = {"peak_kv": {"reserved": 40, "used": 40}, "kv_in_steps": {"reserved": 300, "used": 300}}


def test_two_runs_of_a_journal() -> None:
    """Its peak is of one step, whole; its mean of all steps."""
    both = add(EARLY, LATE)
    assert both == {
        "peak_kv": {"reserved": 50, "used": 20}, "kv_in_steps": {"reserved": 400, "used": 360}
    }  # fmt: skip
    assert round(wasted_share(both["kv_in_steps"]), 6) == 0.1
    assert add({}, LATE) == LATE and add(EARLY, {"peak_kv": {}})["peak_kv"] == EARLY["peak_kv"]


def test_nothing_is_said_of_what_was_not_counted() -> None:
    assert kv_rows({}) == kv_rows({"peak_kv": {}, "kv_in_steps": {}, "peak_states": 0}) == []
    assert kv_rows({"peak_kv": {"reserved": 0, "used": 0}}) == []
    assert wasted_share({}) == 0
