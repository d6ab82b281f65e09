"""A problem that the vote rescued, in as many lines as the screen has room for."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from sharegen.common.printable import visible
from sharegen.results.scoring.vote import Vote

LEAST = 4
"""Lines that it takes at least: its title, one of the question, the answer, and the others."""

_BAR = 24  # widest bar of the histogram, in columns
_ANSWERS = 4  # most answers in the histogram
_QUESTION = 6  # most lines of the question, its last ones


def rescue(console: Console, vote: Vote, question: str, lines: int) -> Iterator[RenderableType]:
    """Title, end of the question, and what was answered how often. lines: at most so many."""
    yield f"[bold]A problem that the vote rescued[/] [dim](problem {visible(vote.problem_id)})[/]"
    answers = list(_answers(vote, max(1, min(_ANSWERS, lines - 4))))  # two lines for the question
    room = min(_QUESTION, lines - 1 - len(answers))
    wrapped = Text.from_markup(visible(question.strip())).wrap(console, console.width - 1)
    shown = list(wrapped)[-room:]
    if len(wrapped) > room:
        shown[0] = Text("…") + shown[0]
    yield from shown
    yield from answers


def _answers(vote: Vote, most: int) -> Iterator[str]:
    """A bar for each of the commonest answers, and how many others there are."""
    longest = max(vote.counts.values())
    shown = list(vote.counts.items())[:most]
    for answer, count in shown:
        bar = "█" * max(1, round(_BAR * count / longest))
        color, mark = ("green", " ✓ gold") if vote.right[answer] else ("red", "")
        yield f"  {count:>3} [{color}]{bar}[/] {visible(answer)}{mark}"
    others = len(vote.counts) - len(shown)
    if others:
        rest = sum(vote.counts.values()) - sum(count for _, count in shown)
        each = "each with another answer" if rest == others else f"with {others:,} other answers"
        yield f"  {rest:>3} [dim]more, {each}[/]"
