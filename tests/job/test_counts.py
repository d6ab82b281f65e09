"""What the runs of a journal count together."""

from __future__ import annotations

from typing import Any

from sharegen.job.counts import added


def counted(computed: int, **others: Any) -> dict[str, Any]:
    return {"prompt_tokens_computed": computed, **others}


def test_counts_add_up_and_states_are_the_latest() -> None:
    before = counted(5, peak_blocks=9, slots=4, steps_by_levels={"0": 3}, slow_attention="why")
    now = counted(2, peak_blocks=7, slots=8, steps_by_levels={"0": 1, "": 2}, slow_attention=None)
    assert added(before, now, 0) == counted(
        7,
        prompt_tokens_resumed=0,
        peak_blocks=9,
        slots=8,
        steps_by_levels={"0": 4, "": 2},
        slow_attention=None,
    )


def test_what_is_computed_again_counts_apart() -> None:
    first = added({}, counted(100), 0)
    second = added(first, counted(130), 100)
    assert second == counted(130, prompt_tokens_resumed=100)
    assert added(second, counted(130), 130) == counted(130, prompt_tokens_resumed=230)
    killed = added({}, counted(130), 100)  # the earlier run left no counts
    assert killed == counted(130, prompt_tokens_resumed=0)
    assert added(first, counted(40), 100) == counted(100, prompt_tokens_resumed=40)  # stopped early
