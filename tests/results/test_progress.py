from __future__ import annotations

import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from sharegen.results import progress as module
from sharegen.results.progress import Progress


@dataclass
class Engine:
    """What the engine says about itself."""

    generated_tokens: int = 100
    running: int = 0
    blocks_used: int = 0
    blocks_total: int = 8
    idle: list[int] = field(default_factory=list)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_now_and_then_and_at_the_end(clock: list[float]) -> None:
    out, engine = io.StringIO(), Engine()
    with Progress(engine, 4, 2, Console(file=out)) as progress:
        clock[0] += 5
        progress.advance(problem_done=False)
        assert out.getvalue() == ""
        clock[0] += 6
        engine.generated_tokens, engine.running, engine.blocks_used = 320, 3, 2
        progress.advance(problem_done=True)
        assert out.getvalue() == (
            "sharegen: 2/4 samples · 1/2 problems · 20 tokens/s · 3 running · KV 25% · "
            "0:00:02 left\n"
        )
        progress.advance(problem_done=False)
        progress.advance(problem_done=True)
    assert out.getvalue().splitlines()[-1].startswith("sharegen: 4/4 samples · 2/2 problems")
    assert len(out.getvalue().splitlines()) == 2


def test_nothing_to_do_says_nothing(clock: list[float]) -> None:
    out = io.StringIO()
    with Progress(Engine(), 0, 0, Console(file=out)):
        pass
    assert out.getvalue() == ""


@pytest.mark.parametrize(
    ("idle", "said"),
    [
        ([2], "worker 2 idle"),
        ([1, 3], "workers 1, 3 idle"),
        ([2, 3, 4, 5, 9], "5 workers idle"),
    ],
)
def test_who_is_idle(clock: list[float], idle: list[int], said: str) -> None:
    progress = Progress(Engine(running=7, idle=idle), 4, None, Console(file=io.StringIO()))
    assert f"7 running · {said} · KV 0%" in progress.describe()


def test_without_an_end(clock: list[float]) -> None:
    progress = Progress(Engine(blocks_total=0), None, None, Console(file=io.StringIO()))
    assert progress.seconds_left() is None
    clock[0] += 1
    progress.advance(problem_done=True)
    assert progress.describe() == "1 samples · 0 tokens/s · 0 running"
    assert progress.seconds_left() is None


def test_a_terminal_gets_a_bar_and_the_state_below() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Progress(Engine(), 3, 1, console) as progress:
        for sample in range(3):
            progress.advance(problem_done=sample == 2)
    assert "100%" in out.getvalue()
    assert "3/3 samples · 1/1 problems" in out.getvalue()
