"""What stopping early saves: the same job in full and under rules, for several seeds.

    python -m benchmarks stopping --folder runs/stopping --seeds 5 -n 40

Every run is a journal in the folder, so that the command goes on where it was stopped. Beside what
was saved stands what could have been: the rule over the full journal in the order of its indices,
as if nothing had been in flight. Accuracy is compared problem by problem, with the interval of the
difference over all problems of all seeds; what counts of a stopped journal is that of the replay,
by any run. With `--replay` the full journals are all that is run. Where others use the cores,
`--clock cpu` tells more: it takes the CPU seconds of the process for time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sharegen.common.stop_rule import StopRule
from sharegen.errors import UsageError
from sharegen.job.run_job import run_job
from sharegen.results.journal.pool import Pool, one_job
from sharegen.results.journal.run_file import RunFile
from sharegen.results.scoring.passk import bootstrap_interval
from sharegen.results.scoring.vote import tally
from sharegen.results.stopping.stopped import Stopped, counted
from sharegen.workload.configuration import Configuration, resolve

RULES = ("decided", "confident", "window", "right=4")
_CLOCKS = {"wall": "sampling_seconds", "cpu": "cpu_seconds"}  # as a run.json calls them


@dataclass(frozen=True)
class Replayed:
    """What one seed's full journal comes to under a rule, read in the order of its indices.

    asked: samples of the full job; possible: the share of them that the rule leaves undrawn.
    gains: of each problem, how much more often the vote is right than that of all samples.
    """

    asked: int
    possible: float
    accuracy: float
    gains: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """What a run of one seed under a rule took.

    drawn: samples, with those that were cancelled; saved: the share of all that they leave.
    seconds: that it took; time_saved: the share of the full job's that they leave. speed: in
    tokens a second, the full job's being 1.
    """

    drawn: int
    saved: float
    seconds: float
    time_saved: float
    speed: float


def replay(full: Path, rule: StopRule, samples: int) -> Replayed:
    """The rule over a full journal, as if nothing had been in flight."""
    found = one_job(full)
    stopped = Stopped.read(rule, samples, found)
    asked = samples * len(stopped.problems)
    right, fully = _right(found, stopped), _right(found, None)
    return Replayed(
        asked=asked,
        possible=1 - sum(deciding.counted for deciding in stopped.problems.values()) / asked,
        accuracy=float(np.mean(list(right.values()))),
        gains=tuple(right[problem] - fully[problem] for problem in sorted(fully)),
    )


def measure(full: Path, path: Path, asked: int, clock: str) -> Run:
    """Compare a journal that a rule stopped with the full one of the same seed."""
    before, some_of = one_job(full).run, one_job(path)
    now = some_of.run
    assert before is not None and now is not None
    drawn = sum(record.is_sample for record in some_of.records()) + now.stats["cancelled"]
    seconds, fully_seconds = _seconds(now, clock), _seconds(before, clock)
    return Run(
        drawn=drawn,
        saved=1 - drawn / asked,
        seconds=seconds,
        time_saved=1 - seconds / fully_seconds,
        speed=_tokens(now, asked - drawn) / seconds / (_tokens(before, 0) / fully_seconds),
    )


def _right(found: Pool, stopped: Stopped | None) -> dict[str, float]:
    """Whether each problem's vote is right."""
    votes = tally(counted(found.records(), stopped))
    return {vote.problem_id: float(bool(vote.correct)) for vote in votes}


def _seconds(run: RunFile, clock: str) -> float:
    return float(run.timings[_CLOCKS[clock]])


def _tokens(run: RunFile, undrawn: int) -> int:
    """Count tokens without the first ones of samples that were never begun."""
    return int(run.stats["generated_tokens"]) - undrawn


@dataclass(frozen=True)
class StoppingSettings:
    """What is run: a recipe's job, once for each seed, in full and by each rule.

    folder: of the journals. replay: only the full jobs, from which it is known what a rule would
    have drawn. clock: by which seconds are counted.
    """

    folder: Path
    recipe: str
    dataset: str | None
    model: str | None
    limit: int | None
    seeds: int
    samples: int
    rules: Sequence[str]
    device: str
    max_sequences: int | None
    replay: bool
    clock: str

    def check(self) -> None:
        """Raise SharegenError for what no job can be made of."""
        if self.clock not in _CLOCKS:
            raise UsageError(f"--clock {self.clock}: it must be one of {', '.join(_CLOCKS)}")
        for rule in self.rules:
            self.configuration(0, rule)

    def run(self, seed: int, rule: str | None) -> Path:
        """The journal of a job, drawn where it is not there yet."""
        path = self.folder / f"{rule or 'full'}-{seed}.jsonl"
        run_job(self.configuration(seed, rule), path)
        return path

    def configuration(self, seed: int, rule: str | None) -> Configuration:
        machine = {"device": self.device, "workers": 1, "max_sequences": self.max_sequences}
        sampling = {"samples": self.samples, "seed": seed, "stop_when": rule}
        flags: dict[str, Any] = {"sampling": sampling, "machine": machine}
        if self.model is not None:
            flags["model"] = self.model
        if self.limit is not None:
            flags["dataset"] = {"limit": self.limit}
        return resolve(self.recipe, self.dataset, flags)


def bench_stopping(asked: StoppingSettings) -> None:
    """Run the jobs; a table of all seeds until now is printed after each."""
    asked.check()
    replayed: dict[str, list[Replayed]] = {rule: [] for rule in asked.rules}
    runs: dict[str, list[Run]] = {rule: [] for rule in asked.rules}
    for seed in range(asked.seeds):
        full = asked.run(seed, None)
        for text in asked.rules:
            known = replay(full, StopRule.parse(text), asked.samples)
            replayed[text].append(known)
            if not asked.replay:
                runs[text].append(measure(full, asked.run(seed, text), known.asked, asked.clock))
        _print(replayed, runs)


def _print(replayed: Mapping[str, list[Replayed]], runs: Mapping[str, list[Run]]) -> None:
    """A line a rule: what its full journals allow, and what its runs took where there are any."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    names = ["rule", "seeds", "possible", "vote right", "beside the full vote"]
    if any(runs.values()):
        names += ["drawn", "saved", "of it", "seconds", "saved", "of samples", "tokens/s"]
    for name in names:
        table.add_column(name, justify="left" if name == "rule" else "right")
    for rule, seeds in replayed.items():
        if not seeds:
            continue
        possible, accuracy = _mean(seeds, "possible"), _mean(seeds, "accuracy")
        gains = [gain for each in seeds for gain in each.gains]
        low, high = bootstrap_interval(gains)
        row = [
            StopRule.parse(rule).named, str(len(seeds)), f"{possible:.1%}", f"{accuracy:.1%}",
            f"{100 * float(np.mean(gains)):+.2f} points ({100 * low:+.2f} to {100 * high:+.2f})",
        ]  # fmt: skip
        if taken := runs[rule]:
            saved, time_saved = _mean(taken, "saved"), _mean(taken, "time_saved")
            row += [
                f"{_mean(taken, 'drawn'):,.0f}", f"{saved:.1%}", _ratio(saved, possible),
                f"{_mean(taken, 'seconds'):,.1f}", f"{time_saved:.1%}", _ratio(time_saved, saved),
                f"{_mean(taken, 'speed'):.2f}x",
            ]  # fmt: skip
        table.add_row(*row)
    Console(width=150).print(table)


def _mean(seeds: Sequence[Any], name: str) -> float:
    return float(np.mean([getattr(each, name) for each in seeds]))


def _ratio(part: float, whole: float) -> str:
    """Return a part of a whole; nothing is a part of nothing."""
    return f"{part / whole:.2f}" if whole else ""
