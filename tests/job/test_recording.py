"""Answers that are looked for in what a model wrote."""

from __future__ import annotations

import time

import pytest

from sharegen.job.recording import answer_in
from sharegen.workload.configuration import resolve


@pytest.mark.slow
def test_a_long_text_of_marks_has_no_answer_and_costs_no_minute() -> None:
    """The bundled pattern looks over the rest of the line at each mark."""
    configuration = resolve("self-consistency")
    assert configuration.is_bundled
    started = time.monotonic()
    assert answer_in("#" * 30_000, configuration) is None
    assert time.monotonic() - started < 20
    assert answer_in("so it goes on " * 100 + "#### 18", configuration) == "18"
    assert answer_in("#### 18", configuration) == "18"


def test_a_recipe_without_answers() -> None:
    assert answer_in("#### 18", resolve("prompts", __file__, {"model": "m"})) is None
