"""The numbers of a report: one `Measured` a run, made once and drawn many times."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sharegen.results.report.curves import (
    Curve,
    majority_curve,
    pass_curve,
    sample_budget,
    sample_counts,
)
from sharegen.results.report.outcomes import Run
from sharegen.results.scoring.passk import share_interval

_INTERVALS = 60
"""At most so many rates are drawn of a run."""


@dataclass(frozen=True)
class Measured:
    """A run with what was measured of it.

    budget: the largest k of the curves; short: problems that have fewer samples than that. Of a
        run that a rule stopped, k ends where every problem has samples whatever they say.
    passed, majority: None where the run has no verdicts, or no answers that vote.
    rate: [seconds since the start, tokens per second], where the run recorded its progress.
    """

    run: Run
    budget: int
    short: int
    passed: Curve | None
    majority: Curve | None
    rate: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def notes(self) -> Iterator[str]:
        """What a reader of the numbers must know, a sentence each."""
        yield from self.run.notes
        if self.short:
            yield (
                f"{self.short:,} of {len(self.run.outcomes):,} problems have fewer than"
                f" {self.budget} samples with a verdict: at each k the curves go over those"
                " that have k"
            )


def measure_all(runs: Sequence[Run]) -> list[Measured]:
    """All runs, with points on every curve where another one ends."""
    ends = [sample_budget(run.fixed) for run in runs]
    return [measure(run, ends) for run in runs]


def measure(run: Run, also: Sequence[int] = ()) -> Measured:
    """Everything that takes time to compute; also: more points of the curves."""
    outcomes = run.fixed
    enough = None if run.stopped is None else run.stopped.enough
    budget = sample_budget(outcomes)
    ks = sample_counts(budget, also)
    passed: Curve | None
    if budget and enough is not None and run.stopped is not None:
        passed = pass_curve(run.outcomes, sample_counts(run.stopped.samples, also), enough)
    else:
        passed = pass_curve(outcomes, ks) if budget else None
    return Measured(
        run,
        budget,
        short=sum(outcome.judged < budget for outcome in outcomes),
        passed=passed,
        majority=majority_curve(outcomes, ks) if budget else None,
        rate=tuple(_rate(run.file.timings.get("progress"))),
    )


def headline(measured: Measured) -> list[tuple[str, str, str]]:
    """The numbers to lead with: (what, value, how it is meant)."""
    run = measured.run
    lengths = [sample.record.num_tokens for sample in run.samples]
    rows = [
        ("problems", f"{len(run.outcomes):,}", _plural(run.bad_rows, "bad row") + " left out")
        if run.bad_rows
        else ("problems", f"{len(run.outcomes):,}", ""),
        ("completions", f"{len(lengths):,}", f"{len(lengths) / len(run.outcomes):.4g} a problem"),
    ]
    k = measured.budget
    if measured.passed is not None:
        rows.append(("right, a single sample", *_ends(measured.passed, 0)))
    if measured.majority is not None and k > 1:
        rows.append((f"right, the vote over {k}", *_ends(measured.majority, -1)))
    if run.stopped is not None and run.stopped.rule.votes:
        judged = [outcome.vote_right for outcome in run.outcomes if outcome.judged]
        if judged:
            values = [float(bool(right)) for right in judged]
            said = f"right, the vote ({run.stopped.rule.named})"
            rows.append((said, *_interval(statistics.fmean(values), *share_interval(values))))
    if measured.passed is not None and measured.passed.ks[-1] > 1:
        rows.append((f"right, any of {measured.passed.ks[-1]}", *_ends(measured.passed, -1)))
    tokens = sum(lengths)
    rows.append(("tokens written", f"{tokens:,}", f"median {statistics.median(lengths):,.0f}"))
    speed = throughput(run)
    if speed is not None:
        rows.append(("tokens per second", f"{speed:,.0f}", "over the whole run"))
    asked, computed = prompt_tokens(run)
    if asked and computed:
        fewer = f"{asked:,} asked: {asked / computed:,.1f}x fewer"
        rows.append(("prompt tokens computed", f"{computed:,}", fewer))
    shared, unshared = prompt_kv_bytes(run)
    if shared and unshared:
        less = f"{_size(unshared)} unshared: {unshared / shared:,.1f}x less"
        rows.append(("KV of the prompts", _size(shared), less))
    peak, total = (number(run.file.stats.get(name)) for name in ("peak_blocks", "blocks_total"))
    if peak:
        rows.append(("peak KV blocks", f"{peak:,.0f}", f"of {total:,.0f}" if total else ""))
    return rows


def prompt_tokens(run: Run) -> tuple[int, int]:
    """Prompt tokens as asked (each sample's whole prompt) and as computed; 0 where unknown."""
    stats = run.file.stats
    asked, computed = (
        number(stats.get(f"prompt_tokens_{name}")) or 0 for name in ("asked", "computed")
    )
    return int(asked), int(computed)


def prompt_kv_bytes(run: Run) -> tuple[float, float]:
    """Return the bytes of KV of all prompts, stored once, and once a sample, as the job planned it;
    0 where unknown.
    """
    plan = run.file.stats.get("plan")
    values = plan if isinstance(plan, dict) else {}
    shared, unshared = (number(values.get(f"kv_{name}_bytes")) for name in ("shared", "unshared"))
    return shared or 0.0, unshared or 0.0


def throughput(run: Run) -> float | None:
    """Generated tokens per second of sampling, over all the runs that made the journal."""
    tokens = number(run.file.stats.get("generated_tokens"))
    seconds = number(run.file.timings.get("sampling_seconds"))
    return tokens / seconds if tokens and seconds else None


def number(value: Any) -> float | None:
    """A number from a run.json, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _rate(progress: Any) -> Iterator[tuple[float, float]]:
    """Yield the tokens per second at the end of each interval of [[seconds, tokens so far], ...].

    Points that lie closer than a part of the run are merged: their rates are mostly noise.
    """
    if not (isinstance(progress, list) and progress):
        return
    points = []
    for point in progress:
        pair = [number(value) for value in point] if isinstance(point, list) else []
        if len(pair) != 2 or pair[0] is None or pair[1] is None:
            return
        points.append((pair[0], pair[1]))
    end = points[-1][0]
    before = (0.0, 0.0)
    for seconds, tokens in points:
        if seconds - before[0] >= end / _INTERVALS or before[0] < seconds == end:
            yield seconds, max(0.0, tokens - before[1]) / (seconds - before[0])
            before = (seconds, tokens)


def _ends(curve: Curve, index: int) -> tuple[str, str]:
    return _interval(curve.mean[index], curve.low[index], curve.high[index])


def _interval(mean: float, low: float, high: float) -> tuple[str, str]:
    return f"{mean:.1%}", f"95% interval {100 * low:.1f}–{high:.1%}"


def _size(count: float) -> str:
    """Write bytes in the largest unit of which there is at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def settings(runs: Sequence[Run]) -> list[tuple[str, list[str | None]]]:
    """The configuration of every run: dotted name, then one value a run (None: not set)."""
    tables = [dict(_settings(run)) for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    return [(name, [table.get(name) for table in tables]) for name in names]


def _settings(run: Run) -> Iterator[tuple[str, str]]:
    file = run.file
    yield from _flatten(file.settings)
    if "hash" in file.answers:
        yield "answer.hash", str(file.answers["hash"])
    yield from _flatten(file.fingerprints, "fingerprints.")
    yield from _flatten(file.versions, "versions.")
    yield from _flatten(file.environment, "environment.")


def _flatten(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", ", ".join(map(_show, value)) or "none"
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else _show(value)


def _show(value: Any) -> str:
    if value is None:
        return "none"
    return repr(value) if isinstance(value, str) else str(value)
