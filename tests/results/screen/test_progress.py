from __future__ import annotations

import io
import re
from dataclasses import dataclass, field

import pytest
from rich.console import Console

from sharegen.results.screen import progress as module
from sharegen.results.screen.bar import is_shown
from sharegen.results.screen.progress import EarlierProgress, Progress


@dataclass
class Engine:
    """What the engine says about itself."""

    generated_tokens: int = 100
    copies: int = 0
    cancelled: int = 0
    device: str = "cpu"
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
        progress.advance(60, problem_done=False)
        assert out.getvalue() == ""
        clock[0] += 6
        engine.generated_tokens, engine.running, engine.blocks_used = 320, 2, 2
        progress.advance(60, problem_done=True)
        line = "sharegen: 65% · 2/4 samples · 1/2 problems · 20 tokens/s · 2 running · KV 25%"
        assert re.fullmatch(rf"{line}( · 0:00:\d\d left)?\n", out.getvalue())
        progress.advance(70, problem_done=False)
        progress.advance(70, problem_done=True)
    assert out.getvalue().splitlines()[-1].startswith("sharegen: 100% · 4/4 samples · 2/2 problems")
    assert len(out.getvalue().splitlines()) == 2


class Cell(io.StringIO):
    """What ipykernel puts under a cell: no terminal, and shown as it grows."""


Cell.__module__ = "ipykernel.iostream"


def test_a_notebook_gets_a_line_that_is_written_anew(clock: list[float]) -> None:
    out, engine = Cell(), Engine(generated_tokens=0)
    with Progress(engine, 4, None, Console(file=out), longest=50) as progress:
        for _ in range(4):
            clock[0] += 0.2
            engine.generated_tokens += 50
            progress.advance(50, problem_done=False)
    first, *lines = out.getvalue().split("\r")
    assert not first and len(lines) == 4  # the first, two of four that came soon, the last
    assert len({len(line.rstrip("\n")) for line in lines}) == 1  # nothing of an earlier one stays
    assert "0/4 samples" in lines[0] and lines[-1].startswith("100% ████████████████████ 4/4")
    assert out.getvalue().endswith("\n") and out.getvalue().count("\n") == 1


def test_who_sees_a_bar() -> None:
    assert is_shown(Cell())
    assert not is_shown(io.StringIO()) and not is_shown(None)


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
    progress.advance(5, problem_done=True)
    assert progress.describe() == "1 samples · 0 tokens/s · 0 running"
    assert progress.seconds_left() is None


def test_a_terminal_gets_a_bar_and_the_state_below() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Progress(Engine(), 3, 1, console) as progress:
        for sample in range(3):
            progress.advance(7, problem_done=sample == 2)
    assert "100%" in out.getvalue()
    assert "3/3 samples · 1/1 problems" in out.getvalue()


def test_tokens_count_before_any_sample_ends(clock: list[float]) -> None:
    """64 of 256 samples run and none is done: at most 100 tokens each, 10 of which are drawn."""
    engine = Engine(generated_tokens=0)
    progress = Progress(engine, 256, 8, Console(file=io.StringIO()), longest=100)
    assert progress.share() == 0 and progress.seconds_left() is None
    engine.running = 64
    for _ in range(10):
        clock[0] += 1
        engine.generated_tokens += 64
        progress.share()
    left = progress.seconds_left()
    assert progress.share() == 640 / 25_600 and left is not None and 100 < left < 780


def test_the_short_ones_that_finish_first_do_not_hurry_the_bar(clock: list[float]) -> None:
    engine = Engine(generated_tokens=0, running=9)
    progress = Progress(engine, 100, None, Console(file=io.StringIO()), longest=200)
    engine.generated_tokens = 100
    progress.advance(10, problem_done=False)  # nine others have 10 tokens and go on
    assert progress.share() < 0.1
    for tokens in [30] * 99:
        clock[0] += 1
        engine.generated_tokens += tokens
        before = progress.share()
        progress.advance(tokens, problem_done=False)
        assert before <= progress.share()
    assert progress.share() == 1 and progress.seconds_left() == 0


def test_greedy_samples_that_repeat_another_count_too(clock: list[float]) -> None:
    engine = Engine(generated_tokens=0)
    progress = Progress(engine, 8, None, Console(file=io.StringIO()), longest=50)
    engine.running = 1
    for _ in range(50):
        clock[0] += 0.1
        engine.generated_tokens += 1
        progress.share()
    engine.running, engine.copies = 0, 3
    for _ in range(4):
        progress.advance(50, problem_done=False)
    clock[0] += 1
    assert 0.3 < progress.share() < 0.7  # one of two was drawn, of eight that come


def test_a_run_that_goes_on_begins_where_the_last_one_ended(clock: list[float]) -> None:
    engine = Engine(generated_tokens=0, running=100)
    before = EarlierProgress(132, 6, {70: 66, 90: 66})
    progress = Progress(engine, 100, 5, Console(file=io.StringIO()), 256, before)
    assert progress.describe().startswith("132/232 samples · 6/11 problems")
    for _ in range(8):
        clock[0] += 1
        engine.generated_tokens += 100
        progress.share()
    assert 132 / 232 < progress.share() < 0.66
    left = progress.seconds_left()
    assert left is not None and 36 < left < 144  # some 72 steps, as those on record took
    progress.advance(8, problem_done=False)
    assert progress.describe().startswith("133/232 samples")


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(clock: list[float], width: int) -> None:
    engine = Engine(generated_tokens=0, running=1_024, blocks_used=7, idle=[1, 3])
    progress = Progress(engine, 123_456, 7_890, Console(file=io.StringIO()), longest=99)
    for _ in range(3):
        clock[0] += 1
        engine.generated_tokens += 32_921
        progress.share()
    progress.save(16, 4)
    whole, line = progress.describe(), progress.describe(width)
    assert len(line) <= width and len(whole) > 120
    assert line.startswith("0/123,456 samples") and (width == 30 or line.endswith(" left"))


def test_the_bar_fits_80_columns() -> None:
    out, engine = io.StringIO(), Engine(generated_tokens=0, running=1_024, idle=[1, 3])
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    before = EarlierProgress(98_765, 4_321, {1_000: 98_765})
    with Progress(engine, 1_135_802, 52_468, console, 1_000, before):
        engine.generated_tokens = 12_345
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n").splitlines()
    assert lines and max(map(len, lines)) <= 80
    assert "8%" in out.getvalue() and "98,765/1,234,567 samples" in lines[-1]
