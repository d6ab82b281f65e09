"""How far scoring is, as lines where stderr is no terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from sharegen.cli.score_progress import ScoreProgress
from sharegen.results.scoring.score import Score


def test_lines_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    right, wrong = Score("passed", 1, 0.1), Score("wrong answer", 0, 0.1)
    with ScoreProgress(Console(file=out)) as progress:
        progress.plan(8, done=4)
        now[0] += 2
        progress.advance(right)
        assert out.getvalue() == ""
        now[0] += 10
        progress.advance(wrong)
        assert out.getvalue() == (
            "sharegen: 75% · 6/8 programs · 1 of 2 passed · 0 programs/s · 0:00:12 left\n"
        )
        progress.advance(wrong)
        progress.advance(right)
    assert out.getvalue().splitlines()[-1].startswith("sharegen: 100% · 8/8 programs · 2 of 4")


def test_nothing_to_score_says_nothing() -> None:
    out = io.StringIO()
    with ScoreProgress(Console(file=out)) as progress:
        progress.plan(3, done=3)
    assert out.getvalue() == ""
