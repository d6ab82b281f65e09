"""What several engines count together."""

from __future__ import annotations

from sharegen.engine.config import EngineStats
from sharegen.engine.parallel.counts import Counts


def test_the_last_word_of_each_counts() -> None:
    total = EngineStats(prompt_tokens_asked=9)
    counts = Counts(total)
    counts.update("a", EngineStats(slots=8, running=3, completions=1, steps_by_levels={"0": 2}))
    counts.update("b", EngineStats(slots=4, running=1, completions=5, decode_seconds=0.5))
    first = EngineStats(slots=8, running=2, completions=4, steps_by_levels={"0": 3, "": 1})
    counts.update("a", first)
    assert (total.slots, total.running, total.completions) == (8, 3, 9)
    assert total.steps_by_levels == {"0": 3, "": 1}
    assert total.decode_seconds == 0.5 and total.prompt_tokens_asked == 9


def test_peaks_of_the_kv_cache_are_added_up() -> None:
    total = EngineStats()
    counts = Counts(total)
    for name, most in (("a", 5), ("b", 7), ("a", 6)):
        counts.update(name, EngineStats(peak_kv={"reserved": most}, kv_in_steps={"used": 1}))
    assert (total.peak_kv, total.kv_in_steps) == ({"reserved": 13}, {"used": 2})


def test_one_that_is_gone_runs_nothing() -> None:
    total = EngineStats()
    counts = Counts(total)
    for name in "ab":
        counts.update(name, EngineStats(running=2, blocks_total=10, completions=7))
    counts.leave("a")
    counts.leave("one that was never ready")
    assert (total.running, total.blocks_total, total.completions) == (2, 10, 14)


def test_the_same_object_may_be_told_again() -> None:
    total, stats = EngineStats(), EngineStats()
    counts = Counts(total)
    for _ in range(3):
        stats.completions += 2
        stats.steps_by_levels["0"] = stats.completions
        counts.update("a", stats)
    assert total.completions == 6 and total.steps_by_levels == {"0": 6}


def test_why_attention_is_slow_is_kept() -> None:
    total = EngineStats()
    counts = Counts(total)
    counts.update("a", EngineStats(slow_attention="no kernel"))
    counts.update("b", EngineStats())
    assert total.slow_attention == "no kernel"
