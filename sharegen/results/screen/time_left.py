"""How many tokens a job still has to draw, and how long that takes.

A step takes some time whatever it computes, and some more for each of its rows: the first is nearly
all of it on a GPU, the second on a CPU. Both are fitted to what was seen. The steps to come are
those that the waiting samples take with all rows full, and those until the last sample ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from sharegen.results.screen.lifetimes import Lifetimes

_LATE = 0.2  # of the time so far: what counts as of late
_LATE_SECONDS = 1.0  # at least
_APART = 0.01  # of the time so far, between two points
_TICK = 1e-6  # seconds: what is nearer says nothing about a pace, and its inverse is no number
_BY_STEPS = {False: 0.2, True: 0.9}
"""The part of a full step that its rows do not change, on a GPU or not, before more is known."""
_PRIOR = 0.003  # what that weighs against what was seen


@dataclass(frozen=True)
class Left:
    """What is left of a job. tokens: still to be drawn. seconds: that this takes; None where it is
    too early to say.
    """

    tokens: float
    seconds: float | None


@dataclass(frozen=True)
class _Point:
    """What was seen until a moment. steps: tokens of a row that ran from the start."""

    seconds: float
    steps: float
    tokens: float

    def __sub__(self, other: _Point) -> _Point:
        return _Point(
            self.seconds - other.seconds, self.steps - other.steps, self.tokens - other.tokens
        )


class TimeLeft:
    """Watches samples run and end.

    longest: tokens that a sample has at most; None without a limit. before: the lengths of samples
    that are on record: how many have so many tokens.
    """

    def __init__(self, longest: int | None, before: Mapping[int, int], on_gpu: bool) -> None:
        self._longest = longest
        self._by_steps = _BY_STEPS[on_gpu]
        self._lengths = Counter(before)
        self._begun: list[float] = []  # the steps at which those began that run, in order
        self._now = _Point(0.0, 0.0, 0.0)
        self._running = self._most_running = 0
        self._finished_tokens = 0  # of samples that finished under our eyes
        self._late: deque[_Point] = deque()
        self._last: _Point | None = None  # of those that were fitted
        self._sums = [0.0] * 5  # of the products of steps, tokens and seconds between two points

    def observe(self, seconds: float, drawn: int, running: int) -> None:
        """Note that after so many seconds so many tokens are drawn in all, and so many samples
        run.
        """
        before = self._now
        rows = max(1.0, (self._running + running) / 2 if self._running else running)
        new = max(0.0, drawn - before.tokens)
        self._now = _Point(seconds, before.steps + new / rows, before.tokens + new)
        self._running = running
        if running > self._most_running:
            self._most_running = running
            self._last = None
        while len(self._begun) < running:
            self._begun.append(self._now.steps)
        if drawn and (self._last is None or seconds - self._last.seconds > _APART * seconds):
            self._fit()

    def _fit(self) -> None:
        """Add a point. While rows fill, prompts take the time, which says nothing about steps."""
        if self._last is not None:
            seen = self._now - self._last
            pairs = (
                (seen.steps, seen.steps),
                (seen.steps, seen.tokens),
                (seen.tokens, seen.tokens),
                (seen.steps, seen.seconds),
                (seen.tokens, seen.seconds),
            )
            if seen.seconds > _TICK:  # weighted so that errors count as parts of the time
                more = (one * two / seen.seconds for one, two in pairs)
                self._sums = [sum(both) for both in zip(self._sums, more, strict=True)]
        self._last = self._now
        self._late.append(self._now)
        late = max(_LATE_SECONDS, _LATE * self._now.seconds)
        while len(self._late) > 2 and self._late[1].seconds < self._now.seconds - late:
            self._late.popleft()

    def finish(self, tokens: int, is_copy: bool) -> None:
        """A sample is finished; is_copy: what was drawn for another one was taken for it, too."""
        self._lengths[tokens] += 1
        self._finished_tokens += tokens
        if is_copy or not self._begun:
            return
        began = self._now.steps - tokens
        at = bisect_left(self._begun, began)
        near = [i for i in (at - 1, at) if 0 <= i < len(self._begun)]
        del self._begun[min(near, key=lambda i: abs(self._begun[i] - began))]

    def cancel(self, samples: int) -> None:
        """Note that so many of those that ran were cancelled; which, nobody says: the last that
        began.
        """
        del self._begun[max(0, len(self._begun) - samples) :]

    def left(self, unfinished: int) -> Left:
        """What is still to come; unfinished: samples that have not ended, begun or not."""
        waiting = max(0, unfinished - len(self._begun))  # those of a step end one after the other
        ages = [max(0.0, self._now.steps - begun) for begun in self._begun[: self._running]]
        lives = Lifetimes(self._lengths, ages, self._longest)
        new = waiting * lives.mean * self._cost(sum(ages))
        tokens = new + lives.to_come(lives.ages)
        rows = min(self._most_running, len(ages) + waiting)
        at_last = lives.settled_ages(rows) if waiting else lives.ages
        before = max(0.0, tokens - lives.to_come(at_last))
        steps = before / max(1, rows) + (lives.until_last(at_last) if any(at_last) else 0.0)
        is_known = self._longest is not None or bool(self._lengths)
        return Left(tokens, self._seconds(steps, tokens) if is_known else None)

    def _seconds(self, steps: float, tokens: float) -> float | None:
        """The time of so many steps and tokens, as it was of late."""
        if len(self._late) < 2:
            return None
        late = self._late[-1] - self._late[0]
        if late.seconds <= _TICK or not late.steps:
            return None
        each_step, each_token = self._costs(late)
        would_be = each_step * late.steps + each_token * late.tokens
        return late.seconds * (each_step * steps + each_token * tokens) / would_be

    def _costs(self, late: _Point) -> tuple[float, float]:
        """Seconds of a step and of a token, by least squares, neither below 0."""
        ss, st, tt, sx, tx = self._sums
        by_step = self._by_steps * late.seconds / late.steps
        by_token = (1 - self._by_steps) * late.seconds / late.tokens
        if not ss:
            return by_step, by_token
        ss, sx = ss * (1 + _PRIOR), sx + _PRIOR * ss * by_step
        tt, tx = tt * (1 + _PRIOR), tx + _PRIOR * tt * by_token
        of_all = ss * tt - st * st
        step, token = (sx * tt - tx * st) / of_all, (tx * ss - sx * st) / of_all
        if step <= 0:
            return 0.0, tx / tt
        if token <= 0:
            return sx / ss, 0.0
        return step, token

    def _cost(self, running: float) -> float:
        """Return the tokens drawn for each token of a finished sample: less than 1 where samples
        are copies.

        running: tokens so far of those that run.
        """
        if not self._finished_tokens:
            return 1.0
        return min(1.0, max(0.02, (self._now.tokens - running) / self._finished_tokens))
