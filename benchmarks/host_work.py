"""What the host does for a whole job: `sharegen run` with a stand-in for the device.

    python -m benchmarks host-work --problems 8 --rows 2048

Everything is as a user has it (prompts, scheduler, collecting, texts, stop strings, answers,
journal, progress, summary), but what a model would draw is a text that is known, with ends at
random. Times are those of this process's processor, by part, less what the stand-in takes.
"""

from __future__ import annotations

import cProfile
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from sharegen.cli import commands_named
from sharegen.engine.core.batch import Batch, PrefillBatch
from sharegen.engine.engine import Engine
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.execute.runner import Runner
from sharegen.engine.loop.collecting import Collector
from sharegen.engine.loop.ending import Endings
from sharegen.engine.prepared import Prepared, Start
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.job import loaded
from sharegen.results.journal.journal import Journal
from sharegen.results.screen.progress import Progress
from sharegen.workload.recipe import RECIPES

_ANSWERS = 2000  # of the file that are drawn, over and over

_PARTS: dict[str, tuple[Any, str]] = {
    "schedule": (Scheduler, "schedule"),
    "collect": (Collector, "collect"),
    "text": (Endings, "completion"),
    "finish": (Scheduler, "finish"),
    "record": (loaded, "record_of"),
    "append": (Journal, "append"),
    "progress": (Progress, "advance"),
}
"""The parts that are timed, each without those inside it."""


@dataclass(frozen=True)
class SimulatedJob:
    """What is drawn. tokens: of a sample on average. stop: a string that ends samples. answers: the
    file whose rows' answers make the text.
    """

    problems: int
    samples: int
    rows: int
    tokens: float
    stop: str
    model: str | None = None
    answers: Path = RECIPES / "tinymath" / "train.jsonl"


class PartClock:
    """Seconds of this thread's processor by part; a part does not count those inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            begun = time.thread_time()
            self._inside.append(0.0)
            try:
                return function(*args, **named)
            finally:
                took, inside = time.thread_time() - begun, self._inside.pop()
                self.seconds[name] += took - inside
                self._inside[-1] += took

        return timed


class StandIn:
    """Draws a known text for every row, from a place of its own on, until a random length.

    text: [n] the token ids that are drawn, over and over. end: the token that ends a sample.
    """

    def __init__(self, text: np.ndarray, end: int, mean: float) -> None:
        self._text, self._end, self._mean = text, end, mean
        self._random = np.random.default_rng(0)
        self._next = np.empty(0, dtype=np.int64)  # by row: where in the text it is
        self._left = np.empty(0, dtype=np.int64)  # by row: tokens before the end

    def run(self, batch: Batch) -> Drawn:
        if isinstance(batch, PrefillBatch):
            count = len(batch.drawings)
            return self._drawn(self._text[self._random.integers(len(self._text), size=count)])
        missing = batch.num_rows - len(self._next)
        if missing > 0:
            self._next = np.pad(self._next, (0, missing))
            self._left = np.pad(self._left, (0, missing))
        if len(batch.moves):
            source, target = batch.moves.T
            self._next[target], self._left[target] = self._next[source], self._left[source]
        begun = len(batch.started)
        self._next[batch.started] = self._random.integers(len(self._text), size=begun)
        self._left[batch.started] = self._random.geometric(1 / self._mean, begun)
        rows = slice(batch.num_rows)
        tokens = self._text[self._next[rows] % len(self._text)]
        ended = self._left[rows] <= 1
        self._next[rows] += 1
        self._left[rows] -= 1
        return self._drawn(np.where(ended, self._end, tokens), ended)

    def _drawn(self, tokens: np.ndarray, ended: np.ndarray | None = None) -> Drawn:
        count = len(tokens)
        ends = torch.zeros(count, dtype=torch.bool) if ended is None else torch.from_numpy(ended)
        return Drawn(torch.from_numpy(tokens), torch.full((count,), -1.25), ends)


def bench_host_work(job: SimulatedJob, profile: Path | None = None) -> dict[str, float]:
    """Run the job; milliseconds a step, microseconds a sample, seconds at the start and the end.

    profile: where cProfile's numbers go, if they are asked for; they make everything slower.
    """
    clock, engines = PartClock(), list[Engine]()
    words = [
        "run", "self-consistency", "--limit", str(job.problems), "-n", str(job.samples),
        "--few-shot", "4", "--max-tokens", "1024", "--stop", job.stop,
        "--max-sequences", str(job.rows), "--device", "cpu", "--workers", "1",
    ]  # fmt: skip
    if job.model is not None:
        words += ["--model", job.model]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        words += ["--output", str(folder / "journal.jsonl")]
        stack.enter_context(redirect_stdout(sys.stderr))
        for name, (owner, method) in _PARTS.items():
            timed = clock.timed(name, getattr(owner, method))
            stack.enter_context(patch.object(owner, method, timed))
        stack.enter_context(patch.object(Prepared, "runner", _runner(job, clock)))
        stack.enter_context(_sampling(clock, engines, profile))
        begun = time.process_time()
        commands_named()(words, standalone_mode=False)
        whole = time.process_time() - begun
    stats, sampling = engines[0].stats, clock.seconds.pop("sampling")
    stand_in = clock.seconds.pop("stand-in")
    steps, samples = stats.decode_steps, stats.completions
    parts = {f"{name}_ms": 1e3 * s / steps for name, s in clock.seconds.items()}
    a_sample = {f"{name}_us": 1e6 * clock.seconds[name] / samples
                for name in ("text", "finish", "record", "append", "progress")}  # fmt: skip
    host = sum(clock.seconds.values()) + sampling
    found = {
        "steps": steps, "samples": samples, "tokens": stats.generated_tokens,
        "rows": stats.generated_tokens / steps, **parts, "rest_ms": 1e3 * sampling / steps,
        "step_ms": 1e3 * host / steps, **a_sample,
        "tokens_per_second": stats.generated_tokens / host,
        "start_and_end_seconds": whole - host - stand_in,
    }  # fmt: skip
    return {name: round(value, 3) for name, value in found.items()}


def _runner(job: SimulatedJob, clock: PartClock) -> Callable[[Prepared, Start], Runner]:
    make = Prepared.runner

    def runner(prepared: Prepared, start: Start) -> Runner:
        found = make(prepared, start)
        tokenizer = prepared.tokenizer
        assert tokenizer is not None
        lines = job.answers.read_text().splitlines()[:_ANSWERS]
        whole = "\n".join(json.loads(line)["answer"] for line in lines)
        text = np.array(tokenizer.encode(whole, add_special_tokens=False), dtype=np.int64)
        stand_in = StandIn(text, tokenizer.eos_token_id, job.tokens)
        found.run = clock.timed("stand-in", stand_in.run)  # type: ignore[method-assign]
        return found

    return runner


@contextmanager
def _sampling(clock: PartClock, engines: list[Engine], path: Path | None) -> Iterator[None]:
    """Time the sampling itself, and keep its engine."""
    generate, sample = Engine.generate, loaded.LoadedJob.sample

    def kept(engine: Engine, *args: Any, **named: Any) -> Any:
        engines.append(engine)
        return generate(engine, *args, **named)

    def sampled(*args: Any, **named: Any) -> Any:
        profile = None if path is None else cProfile.Profile(time.thread_time)
        with profile or nullcontext():
            result = clock.timed("sampling", sample)(*args, **named)
        if profile is not None and path is not None:
            profile.dump_stats(path)
        return result

    with (
        patch.object(Engine, "generate", kept),
        patch.object(loaded.LoadedJob, "sample", sampled),
    ):
        yield
