"""How far a job is: what is drawn of it, at which pace, and how long it will take."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from rich.console import Console

from sharegen.results.screen.bar import Bar, fitted
from sharegen.results.screen.time_left import Left, TimeLeft

_LOOK_SECONDS = 0.8  # between two looks at what is left, which take some milliseconds
_NAMED = 4  # workers that are idle; of more it is said how many they are


class Status(Protocol):
    """What the engine says about itself (`EngineStats` does); of several, which have no work."""

    generated_tokens: int
    copies: int
    cancelled: int
    device: str | None
    running: int
    blocks_used: int
    blocks_total: int
    idle: list[int]


@dataclass(frozen=True)
class EarlierProgress:
    """What earlier runs finished: samples, problems, and how many samples have so many tokens."""

    samples: int = 0
    problems: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """Tokens of all samples; those of other journals are taken to be of mean length."""
        known = sum(self.lengths.values())
        total = sum(tokens * count for tokens, count in self.lengths.items())
        return self.samples * total / known if known else 0.0


class Progress:
    """Tokens drawn out of how many, and samples and problems done, with the engine's state.

    samples, problems: to be done by this run; samples=None where nobody knows how many there will
    be. longest: tokens that a sample has at most, None without a limit. before: what earlier runs
    finished, from which the bar goes on.
    Use as a context manager; `advance` after every completion, and `save` for every problem that
    needs no more of its samples.

    saved: samples that will not be drawn.
    """

    def __init__(
        self,
        status: Status,
        samples: int | None,
        problems: int | None,
        console: Console | None,
        longest: int | None = None,
        before: EarlierProgress = EarlierProgress(),
    ) -> None:
        self.status = status
        self.samples = samples
        self.problems = problems
        self.samples_done = 0
        self.problems_done = 0
        self.saved = 0
        self._on_record = before
        self._longest = longest
        self._tokens_before = before.tokens
        self._time_left = TimeLeft(longest, before.lengths, status.device == "cuda")
        self._left: Left | None = None
        self._left_at = -math.inf
        self._lock = threading.Lock()  # the bar is drawn by a thread of its own
        self._copies, self._cancelled = status.copies, status.cancelled
        self._share = 0.0
        self._settled = 0  # samples of the problems that are decided, drawn or not
        self._started = time.monotonic()
        self._before = status.generated_tokens
        self._bar = Bar(self, console, has_end=samples is not None)

    def __enter__(self) -> Progress:
        self._started = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop(has_news=self.samples_done > 0)

    def advance(self, tokens: int, problem_done: bool) -> None:
        """One more sample is done, of so many tokens, and with it its problem or not."""
        self.samples_done += 1
        self.problems_done += problem_done
        with self._lock:
            self._observe()
            is_copy = self.status.copies > self._copies
            self._copies += is_copy
            self._time_left.finish(tokens, is_copy)
        self._bar.tick()

    def save(self, asked: int, saved: int) -> None:
        """A problem of which so many samples were asked is decided, and so many are not drawn."""
        self._settled += asked
        self.saved += saved
        self.problems_done += 1

    @property
    def expected(self) -> int | None:
        """Samples that will be drawn, if the other problems are decided like those so far."""
        if self.samples is None or not self._settled:
            return self.samples
        still = self.samples - self._settled
        return round(self.samples - self.saved - still * self.saved / self._settled)

    def share(self) -> float:
        """The part of the whole job's tokens that is drawn; it never falls. 0 without an end."""
        if self._is_done:
            return 1.0
        left = self._to_come()
        drawn = self._tokens_before + self.status.generated_tokens - self._before
        if left is not None and drawn:
            total = drawn + left.tokens
            if not self.samples_done and not self._on_record.samples:  # too early to be sure of it
                total = max(total, (self.expected or 0) * (self._longest or math.inf))
            self._share = max(self._share, drawn / total)
        return self._share

    def seconds_left(self) -> float | None:
        """Seconds left; None if it is too early to say, or if there is no end."""
        if self._is_done:
            return 0.0
        left = self._to_come()
        return None if left is None else left.seconds

    @property
    def _is_done(self) -> bool:
        return self.expected is not None and self.samples_done >= self.expected

    def _to_come(self) -> Left | None:
        """What is still to come, looked at now and then; None without an end."""
        samples, now = self.expected, time.monotonic()
        if samples is None:
            return None
        with self._lock:
            self._observe()
            if self._left is None or now - self._left_at >= _LOOK_SECONDS:
                self._left, self._left_at = self._time_left.left(samples - self.samples_done), now
            return self._left

    def _observe(self) -> None:
        drawn = self.status.generated_tokens - self._before
        seconds = time.monotonic() - self._started
        self._time_left.cancel(self.status.cancelled - self._cancelled)
        self._cancelled = self.status.cancelled
        self._time_left.observe(seconds, drawn, self.status.running)

    def describe(self, width: int | None = None) -> str:
        """The state in one line; of that width, without what matters least."""
        seconds = time.monotonic() - self._started
        tokens = self.status.generated_tokens - self._before
        recorded = self._on_record
        parts = [(0, f"{_of(self.samples_done, self.samples, recorded.samples)} samples")]
        if self._settled:
            parts.append((4, f"{self.saved:,} saved, about {self.expected:,} expected"))
        if self.problems is not None:
            done = _of(self.problems_done, self.problems, recorded.problems)
            parts.append((3, f"{done} problems"))
        if tokens or self.samples_done:
            parts.append((2, f"{tokens / seconds if seconds else 0:,.0f} tokens/s"))
        else:
            parts.append((2, "waiting for the first token"))
        parts.append((5, f"{self.status.running:,} running"))
        if self.status.idle:
            parts.append((7, _idle(self.status.idle)))
        if self.status.blocks_total:
            parts.append((6, f"KV {self.status.blocks_used / self.status.blocks_total:.0%}"))
        left = self.seconds_left()
        if left is not None:
            parts.append((1, f"{timedelta(seconds=round(left))} left"))
        return fitted(parts, width)


def longest_of(limits: Iterable[int | None]) -> int | None:
    """The largest of several limits of tokens; None where a sample has none."""
    found = list(limits)
    known = [limit for limit in found if limit is not None]
    return max(known) if known and len(known) == len(found) else None


def _of(done: int, total: int | None, before: int) -> str:
    """How many of all are done, with what was done before."""
    return f"{before + done:,}" if total is None else f"{before + done:,}/{before + total:,}"


def _idle(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} idle"
    if len(workers) > _NAMED:
        return f"{len(workers)} workers idle"
    return f"workers {', '.join(map(str, workers))} idle"
