"""What stopping early saves: the same job in full and under rules, for several seeds.

    python -m sharegen.bench.stopping --folder runs/stopping --seeds 5 -n 40

Every run is a journal in the folder, so that the command goes on where it was stopped. Beside what
was saved stands what could have been: the rule over the full journal in the order of its indices,
as if nothing had been in flight. Accuracy is compared problem by problem, with the interval of the
difference over all problems of all seeds. Where others use the cores, `--clock cpu` tells more: it
takes the CPU seconds of the process for time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from sharegen.common.stop_rule import StopRule
from sharegen.errors import SharegenError
from sharegen.job.run import run_job
from sharegen.results.passk import bootstrap_interval
from sharegen.results.pool import Pool, one_job
from sharegen.results.run_file import RunFile
from sharegen.results.stopped import Stopped, counted
from sharegen.results.vote import tally
from sharegen.workload.configuration import Configuration, resolve

_RULES = ("decided", "confident", "window", "right=4")
_CLOCKS = {"wall": "sampling_seconds", "cpu": "cpu_seconds"}  # as a run.json calls them


@dataclass(frozen=True)
class Measured:
    """One seed under one rule; shares of the full job's samples, seconds and speed.

    drawn: samples, with those that were cancelled; saved: the share of all that they leave;
    possible: by the replay in index order. seconds: that it took; time_saved: the share of the
    full job's that they leave.
    gains: of each problem, how much more often the vote is right than that of all samples.
    """

    drawn: int
    saved: float
    possible: float
    seconds: float
    time_saved: float
    speed: float
    accuracy: float
    gains: tuple[float, ...]


def measure(full: Path, path: Path, rule: StopRule, samples: int, clock: str) -> Measured:
    """Compare a journal that a rule stopped with the full one of the same seed."""
    all_of, some_of = one_job(full), one_job(path)
    before, now = all_of.run, some_of.run
    assert before is not None and now is not None
    replay = Stopped.read(rule, samples, all_of)
    asked = samples * len(replay.problems)
    drawn = sum(record.is_sample for record in some_of.records()) + now.stats["cancelled"]
    possible = sum(deciding.counted for deciding in replay.problems.values())
    seconds, fully_seconds = _seconds(now, clock), _seconds(before, clock)
    right, fully = _right(some_of, Stopped.of(some_of)), _right(all_of, None)
    return Measured(
        drawn=drawn,
        saved=1 - drawn / asked,
        possible=1 - possible / asked,
        seconds=seconds,
        time_saved=1 - seconds / fully_seconds,
        speed=_tokens(now, asked - drawn) / seconds / (_tokens(before, 0) / fully_seconds),
        accuracy=float(np.mean(list(right.values()))),
        gains=tuple(right[problem] - fully[problem] for problem in sorted(fully)),
    )


def _right(found: Pool, stopped: Stopped | None) -> dict[str, float]:
    """Whether each problem's vote is right."""
    votes = tally(counted(found.records(), stopped))
    return {vote.problem_id: float(bool(vote.correct)) for vote in votes}


def _seconds(run: RunFile, clock: str) -> float:
    return float(run.timings[_CLOCKS[clock]])


def _tokens(run: RunFile, undrawn: int) -> int:
    """Without the first tokens of samples that were never begun."""
    return int(run.stats["generated_tokens"]) - undrawn


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="sharegen.bench.stopping")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--recipe", default="self-consistency")
    parser.add_argument("--dataset")
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samples", "-n", type=int, default=40)
    parser.add_argument("--rules", nargs="+", default=list(_RULES))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--max-sequences", type=int)
    parser.add_argument("--clock", choices=list(_CLOCKS), default="wall")
    asked = parser.parse_args(arguments)
    try:
        for text in asked.rules:
            _configure(asked, 0, text)
    except SharegenError as error:
        parser.error(str(error))
    found: dict[str, list[Measured]] = {rule: [] for rule in asked.rules}
    for seed in range(asked.seeds):
        full = _run(asked, seed, None)
        for text in asked.rules:
            path = _run(asked, seed, text)
            rule = StopRule.parse(text)
            found[text].append(measure(full, path, rule, asked.samples, asked.clock))
            _print(found)


def _run(asked: argparse.Namespace, seed: int, rule: str | None) -> Path:
    path = asked.folder / f"{rule or 'full'}-{seed}.jsonl"
    run_job(_configure(asked, seed, rule), path)
    return path


def _configure(asked: argparse.Namespace, seed: int, rule: str | None) -> Configuration:
    machine = {"device": asked.device, "workers": 1, "max_sequences": asked.max_sequences}
    sampling = {"samples": asked.samples, "seed": seed, "stop_when": rule}
    flags: dict[str, Any] = {"sampling": sampling, "machine": machine}
    if asked.model is not None:
        flags["model"] = asked.model
    if asked.limit is not None:
        flags["dataset"] = {"limit": asked.limit}
    return resolve(asked.recipe, asked.dataset, flags)


def _print(found: dict[str, list[Measured]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("rule", "seeds", "drawn", "saved", "possible", "of it", "seconds", "saved",
                 "of samples", "tokens/s", "vote right", "beside the full vote"):  # fmt: skip
        table.add_column(name, justify="left" if name == "rule" else "right")
    for rule, seeds in found.items():
        if not seeds:
            continue
        drawn, saved, possible, seconds, time_saved, speed, accuracy = (
            float(np.mean([getattr(each, name) for each in seeds]))
            for name in ("drawn", "saved", "possible", "seconds", "time_saved", "speed", "accuracy")
        )
        gains = [gain for each in seeds for gain in each.gains]
        low, high = bootstrap_interval(gains)
        table.add_row(
            StopRule.parse(rule).named, str(len(seeds)), f"{drawn:,.0f}", f"{saved:.1%}",
            f"{possible:.1%}", _ratio(saved, possible), f"{seconds:,.1f}", f"{time_saved:.1%}",
            _ratio(time_saved, saved), f"{speed:.2f}x", f"{accuracy:.1%}",
            f"{100 * float(np.mean(gains)):+.2f} points ({100 * low:+.2f} to {100 * high:+.2f})",
        )  # fmt: skip
    Console(width=150).print(table)


def _ratio(part: float, whole: float) -> str:
    """Nothing is a part of nothing."""
    return f"{part / whole:.2f}" if whole else ""


if __name__ == "__main__":
    main()
