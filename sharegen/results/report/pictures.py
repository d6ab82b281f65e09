"""The pictures of a report: what each shows, in words, in numbers and drawn.

A picture is drawn on matplotlib axes that it is given and uses no colour but its theme's; the
numbers behind it come along as a table, for those who cannot see it and those who want to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharegen.results.report.curves import SUBSETS, Curve
from sharegen.results.report.measure import Measured, prompt_tokens
from sharegen.results.report.outcomes import Run
from sharegen.results.vote import natural_order


@dataclass(frozen=True)
class Theme:
    """Colours, as CSS writes them; `series` has one for each run, and starts again after."""

    ink: str
    muted: str
    line: str
    right: str
    wrong: str
    series: tuple[str, ...]

    def of(self, index: int) -> str:
        return self.series[index % len(self.series)]


@dataclass(frozen=True)
class Picture:
    """name: for files and ids; header, rows: the numbers; draw: puts it on matplotlib axes."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[Any, Theme], None]


def pictures(runs: Sequence[Measured]) -> list[Picture]:
    """Every picture that these runs have the numbers for."""
    drawn = (_curves, _difficulties, _solved, _margins, _lengths, _rates, _sharing)
    return [picture for make in drawn for picture in make(runs)]


def _curves(runs: Sequence[Measured]) -> Iterator[Picture]:
    curves = [
        (run.name, measure, index, curve)
        for index, run in enumerate(runs)
        for measure, curve in (("pass@k", run.passed), ("maj@k", run.majority))
        if curve is not None
    ]
    if not curves:
        return
    votes = any(measure == "maj@k" for _, measure, _, _ in curves)
    meanings = ["pass@k: any of k samples is right (unbiased estimate)"]
    if votes:
        meanings.append(f"maj@k: the vote over k is right (mean of {SUBSETS} random subsets)")

    def draw(axes: Any, theme: Theme) -> None:
        largest = max(curve.ks[-1] for *_, curve in curves)
        for name, measure, index, curve in curves:
            colour = theme.of(index if len(runs) > 1 else int(measure == "maj@k"))
            label = measure if len(runs) == 1 else f"{name}, {measure}" if votes else name
            axes.fill_between(curve.ks, curve.low, curve.high, color=colour, alpha=0.14, lw=0)
            style = "--" if measure == "maj@k" and len(runs) > 1 else "-"
            mark = "o" if largest <= 16 else ""
            axes.plot(curve.ks, curve.mean, style, color=colour, marker=mark, ms=4, label=label)
            if curve.ks == (1,):
                error = [[curve.mean[0] - curve.low[0]], [curve.high[0] - curve.mean[0]]]
                axes.errorbar(curve.ks, curve.mean, error, color=colour, capsize=4)
        ticks = [t * 10**e for e in range(7) for t in (1, 2, 5) if t * 10**e <= largest]
        if largest > 1:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(
            f"samples k{f' (maj@k: mean of {SUBSETS} random subsets)' if votes else ''}"
        )
        axes.set_ylabel("problems right")
        top = max(high for *_, curve in curves for high in curve.high)
        axes.set_ylim(0, min(1.0, top * 1.08) if top else 1.0)
        _percent(axes.yaxis)
        if len(curves) > 1:
            axes.legend()

    yield Picture(
        "curve",
        "Right answers against samples",
        f"{'; '.join(meanings)}. Bands: 95% bootstrap intervals over problems.",
        ("run", "measure", "k", "mean", "95% interval"),
        tuple(
            (name, measure, str(k), f"{mean:.1%}", f"{low:.1%} to {high:.1%}")
            for name, measure, _, curve in curves
            for k, mean, low, high in _points(curve)
        ),
        draw,
    )


def _difficulties(runs: Sequence[Measured]) -> Iterator[Picture]:
    levels = sorted(
        {o.difficulty for run in runs for o in run.run.outcomes if o.difficulty and o.judged},
        key=_level_order,
    )
    if not levels:
        return
    counts = [[_solved_of(run.run, level) for level in levels] for run in runs]

    def draw(axes: Any, theme: Theme) -> None:
        width = 0.8 / len(runs)
        for index, of_run in enumerate(counts):
            at = np.arange(len(levels)) - 0.4 + width * (index + 0.5)
            shares = [solved / max(total, 1) for solved, total, _ in of_run]
            single = [mean for *_, mean in of_run]
            colour = theme.of(index)
            several = len(runs) > 1
            label = f"{runs[index].name}, any sample" if several else "any sample is right"
            axes.bar(at, shares, width * 0.9, color=colour, alpha=0.4, label=label)
            label = f"{runs[index].name}, one sample" if several else "a single sample is right"
            axes.bar(at, single, width * 0.9, color=colour, label=label)
            for x, (solved, total, _), share in zip(at, of_run, shares, strict=True):
                axes.annotate(
                    f"{solved:,}/{total:,}",
                    (x, share),
                    (0, 3),
                    textcoords="offset points",
                    ha="center",
                    color=theme.muted,
                    size="small",
                    rotation=90 if width < 0.15 else 0,
                )
        axes.set_xticks(range(len(levels)), levels)
        axes.set_ylim(0, 1.12)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_ylabel("problems right")
        axes.grid(False, axis="x")
        _percent(axes.yaxis)
        axes.legend()

    yield Picture(
        "difficulty",
        "Solved problems by difficulty",
        "Light: problems that any sample solves, with their number. Dark: mean over samples.",
        ("run", "difficulty", "problems", "solved", "a single sample"),
        tuple(
            (run.name, level, f"{total:,}", f"{solved:,}", f"{single:.1%}")
            for run, of_run in zip(runs, counts, strict=True)
            for level, (solved, total, single) in zip(levels, of_run, strict=True)
        ),
        draw,
    )


_SHARES = ("none", *(f"{low}–{low + 10}%" for low in range(0, 100, 10)), "all")


def _solved(runs: Sequence[Measured]) -> Iterator[Picture]:
    judged = [(i, run.name, _share_counts(run.run)) for i, run in enumerate(runs) if run.passed]
    if not judged:
        return

    def draw(axes: Any, theme: Theme) -> None:
        width = 0.86 / len(judged)
        for position, (index, name, counts) in enumerate(judged):
            at = np.arange(len(_SHARES)) - 0.43 + width * (position + 0.5)
            share = counts / counts.sum()
            axes.bar(at, share, width * 0.94, color=theme.of(index), label=name)
        axes.set_xticks(range(len(_SHARES)), ["none", *["" for _ in _SHARES[1:-1]], "all"])
        axes.set_xlabel("share of a problem's samples that is right")
        axes.set_ylabel("problems")
        axes.grid(False, axis="x")
        _percent(axes.yaxis)
        if len(judged) > 1:
            axes.legend()

    yield Picture(
        "solved",
        "How hard the problems are",
        "Problems by the share of their samples that is right, from none to all, in tenths.",
        ("run", "right samples", "problems"),
        tuple(
            (name, label, f"{count:,}")
            for _, name, counts in judged
            for label, count in zip(_SHARES, counts, strict=True)
        ),
        draw,
    )


_MARGINS = np.linspace(0, 1, 11)


def _margins(runs: Sequence[Measured]) -> Iterator[Picture]:
    voted = [(i, run.name, _margin_counts(run.run)) for i, run in enumerate(runs)]
    voted = [entry for entry in voted if entry[2].sum()]
    if not voted:
        return
    kinds = ("vote right", "vote wrong", "not judged")

    def draw(axes: Any, theme: Theme) -> None:
        if len(voted) == 1:
            below = np.zeros(len(_MARGINS) - 1)
            colours = (theme.right, theme.wrong, theme.muted)
            for kind, colour, counts in zip(kinds, colours, voted[0][2], strict=True):
                if counts.any():
                    axes.bar(
                        _MARGINS[:-1], counts, 0.094, below, align="edge", color=colour, label=kind
                    )
                    below = below + counts
        else:
            for index, name, counts in voted:
                axes.stairs(counts.sum(axis=0), _MARGINS, color=theme.of(index), lw=2, label=name)
        axes.set_xlabel("lead of the winner over the runner-up, share of votes")
        axes.set_ylabel("problems")
        axes.set_xlim(0, 1)
        axes.grid(False, axis="x")
        _percent(axes.xaxis)
        axes.legend()

    yield Picture(
        "margins",
        "Vote margins",
        "How far the winning answer leads the next one: a narrow vote is less often right.",
        ("run", "margin", *kinds),
        tuple(
            (name, f"{low:.0%} to {low + 0.1:.0%}", *(f"{n:,}" for n in column))
            for _, name, counts in voted
            for low, column in zip(_MARGINS, counts.T, strict=False)
        ),
        draw,
    )


def _lengths(runs: Sequence[Measured]) -> Iterator[Picture]:
    lengths = [np.array([s.record.num_tokens for s in run.run.samples]) for run in runs]
    cut = [
        sum(s.record.finish_reason in ("length", "context") for s in run.run.samples)
        for run in runs
    ]
    # Whole tokens in every bin, so that no bin is fuller than its neighbours by rounding alone.
    longest = max(int(of_run.max()) for of_run in lengths)
    edges = np.arange(0, longest + 2 + longest // 30, longest // 30 + 1)

    def draw(axes: Any, theme: Theme) -> None:
        for index, (run, of_run) in enumerate(zip(runs, lengths, strict=True)):
            share = np.histogram(of_run, edges)[0] / len(of_run)
            axes.stairs(
                share,
                edges,
                fill=len(runs) == 1,
                color=theme.of(index),
                lw=2,
                label=f"{run.name}: median {np.median(of_run):,.0f}",
            )
        axes.set_xlabel("tokens in a completion")
        axes.set_ylabel("completions")
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(bottom=0)
        _percent(axes.yaxis)
        if len(runs) > 1:
            axes.legend()

    yield Picture(
        "lengths",
        "Completion lengths",
        "Tokens drawn for each completion. Cut off: ended by the token limit or the context.",
        ("run", "completions", "median", "mean", "90% below", "longest", "cut off"),
        tuple(
            (
                run.name,
                f"{len(of_run):,}",
                f"{np.median(of_run):,.0f}",
                f"{of_run.mean():,.1f}",
                f"{np.quantile(of_run, 0.9):,.0f}",
                f"{of_run.max():,}",
                f"{ended / len(of_run):.1%}",
            )
            for run, of_run, ended in zip(runs, lengths, cut, strict=True)
        ),
        draw,
    )


def _rates(runs: Sequence[Measured]) -> Iterator[Picture]:
    timed = [(index, run) for index, run in enumerate(runs) if run.rate]
    if not timed:
        return
    longest = max(run.rate[-1][0] for _, run in timed)
    unit, seconds = next(
        (name, size)
        for name, size in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if longest >= 3 * size or size == 1
    )

    def draw(axes: Any, theme: Theme) -> None:
        for index, run in timed:
            ends = [end / seconds for end, _ in run.rate]
            rates = [rate for _, rate in run.rate]
            axes.stairs(rates, [0, *ends], color=theme.of(index), lw=1.8, label=run.name)
        axes.set_xlabel(f"{unit} since the start")
        axes.set_ylabel("tokens per second")
        axes.set_xlim(0, longest / seconds)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if len(timed) > 1:
            axes.legend()

    yield Picture(
        "throughput",
        "Tokens per second over the run",
        "Generated tokens per second in each interval that the run recorded.",
        ("run", f"until ({unit})", "tokens per second"),
        tuple(
            (run.name, f"{end / seconds:.4g}", f"{rate:,.0f}")
            for _, run in timed
            for end, rate in run.rate
        ),
        draw,
    )


def _sharing(runs: Sequence[Measured]) -> Iterator[Picture]:
    saved = [(index, run.name, *prompt_tokens(run.run)) for index, run in enumerate(runs)]
    saved = [entry for entry in saved if entry[2] and entry[3]]
    if not saved:
        return

    def draw(axes: Any, theme: Theme) -> None:
        most = max(asked for *_, asked, _ in saved)
        for position, (index, _, asked, computed) in enumerate(saved):
            for offset, tokens, alpha, label in (
                (-0.2, asked, 0.4, f"{asked:,} asked"),
                (0.2, computed, 1.0, f"{computed:,} computed ({asked / computed:,.1f}x fewer)"),
            ):
                at = position + offset
                axes.barh(at, tokens, 0.36, color=theme.of(index), alpha=alpha)
                inside = tokens > 0.55 * most
                axes.annotate(
                    label,
                    (0 if inside else tokens, at),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    color=theme.ink,
                )
        axes.set_yticks(range(len(saved)), [name if len(runs) > 1 else "" for _, name, *_ in saved])
        axes.set_ylim(len(saved) - 0.4, -0.6) if len(saved) > 1 else axes.set_ylim(0.8, -0.8)
        axes.set_xlim(0, most * 1.02)
        axes.set_xlabel("prompt tokens")
        axes.xaxis.set_major_locator(_few_ticks())
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        axes.grid(False, axis="y")

    yield Picture(
        "sharing",
        "What sharing saved",
        "Prompt tokens as asked, every sample with its whole prompt, and as computed.",
        ("run", "asked", "computed", "times fewer"),
        tuple(
            (name, f"{asked:,}", f"{computed:,}", f"{asked / computed:,.1f}")
            for _, name, asked, computed in saved
        ),
        draw,
    )


def _points(curve: Curve) -> Iterator[tuple[int, float, float, float]]:
    return zip(curve.ks, curve.mean, curve.low, curve.high, strict=True)


_APPS_LEVELS = ("introductory", "interview", "competition")


def _level_order(level: str) -> tuple[int, list[tuple[int, str]]]:
    rank = _APPS_LEVELS.index(level) if level in _APPS_LEVELS else len(_APPS_LEVELS)
    return rank, natural_order(level)


def _solved_of(run: Run, level: str) -> tuple[int, int, float]:
    """Problems solved by any sample, problems, mean share of right samples."""
    judged = [o for o in run.outcomes if o.difficulty == level and o.judged]
    shares = [outcome.right / outcome.judged for outcome in judged]
    return sum(share > 0 for share in shares), len(shares), float(np.mean(shares or [0.0]))


def _share_counts(run: Run) -> np.ndarray:
    counts = np.zeros(len(_SHARES), dtype=int)
    for outcome in run.outcomes:
        if outcome.judged:
            tenth = min(10 * outcome.right // outcome.judged, 9) + 1
            at = 0 if not outcome.right else -1 if outcome.right == outcome.judged else tenth
            counts[at] += 1
    return counts


def _margin_counts(run: Run) -> np.ndarray:
    """[vote right, vote wrong, not judged] x tenths of the margin."""
    counts = np.zeros((3, len(_MARGINS) - 1), dtype=int)
    for outcome in run.outcomes:
        if outcome.margin is not None:
            row = 2 if outcome.vote_right is None else int(not outcome.vote_right)
            counts[row, min(int(outcome.margin * 10 + 1e-9), 9)] += 1
    return counts


def _percent(axis: Any) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _short(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
