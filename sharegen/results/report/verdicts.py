"""Pictures of what was right: the curves, difficulty, vote margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharegen.results.passk import SUBSETS
from sharegen.results.report.curves import Curve
from sharegen.results.report.measure import Measured
from sharegen.results.report.outcomes import Run
from sharegen.results.report.picture import Picture, Theme, legend, percent
from sharegen.results.vote import natural_order

_LIGHT = 0.4
"""How opaque the lighter one of two bars is."""


def curves(runs: Sequence[Measured]) -> Iterator[Picture]:
    """pass@k and maj@k against k, with their intervals."""
    lines = [
        (run.name, measure, index, curve)
        for index, run in enumerate(runs)
        for measure, curve in (("pass@k", run.passed), ("maj@k", run.majority))
        if curve is not None
    ]
    if not lines:
        return
    votes = any(measure == "maj@k" for _, measure, _, _ in lines)
    meanings = ["pass@k: any of k samples is right (unbiased estimate)"]
    if votes:
        meanings.append(f"maj@k: the vote over k is right (mean of {SUBSETS} random subsets)")

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.lines import Line2D

        largest = max(curve.ks[-1] for *_, curve in lines)
        styles = {"pass@k": "-", "maj@k": "--" if len(runs) > 1 else "-"}
        for _, measure, index, curve in lines:
            colour = theme.of(index if len(runs) > 1 else int(measure == "maj@k"))
            axes.fill_between(curve.ks, curve.low, curve.high, color=colour, alpha=0.14, lw=0)
            mark = "o" if largest <= 16 else ""
            axes.plot(curve.ks, curve.mean, styles[measure], color=colour, marker=mark, ms=4)
            if curve.ks == (1,):
                error = [[curve.mean[0] - curve.low[0]], [curve.high[0] - curve.mean[0]]]
                axes.errorbar(curve.ks, curve.mean, error, color=colour, capsize=4)
        ticks = [t * 10**e for e in range(7) for t in (1, 2, 5) if t * 10**e <= largest]
        if largest > 1:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(f"samples k (maj@k: {SUBSETS} random subsets)" if votes else "samples k")
        axes.set_ylabel("problems right")
        top = max(high for *_, curve in lines for high in curve.high)
        axes.set_ylim(0, min(1.0, top * 1.08) if top else 1.0)
        percent(axes.yaxis)
        colours = (
            dict.fromkeys(styles, theme.muted)
            if len(runs) > 1
            else {"pass@k": theme.of(0), "maj@k": theme.of(1)}
        )
        measures = [
            Line2D([], [], ls=styles[measure], color=colours[measure], label=measure)
            for measure in styles
            if votes or measure == "pass@k"
        ]
        legend(axes, [run.name for run in runs], theme, measures)

    yield Picture(
        "curve",
        "Right answers against samples",
        f"{'; '.join(meanings)}. Bands: 95% bootstrap intervals over problems.",
        ("run", "measure", "k", "mean", "95% interval"),
        tuple(
            (name, measure, str(k), f"{mean:.1%}", f"{low:.1%} to {high:.1%}")
            for name, measure, _, curve in lines
            for k, mean, low, high in _points(curve)
        ),
        draw,
    )


def difficulties(runs: Sequence[Measured]) -> Iterator[Picture]:
    """Solved problems in each difficulty, where the dataset has any."""
    levels = sorted(
        {o.difficulty for run in runs for o in run.run.outcomes if o.difficulty and o.judged},
        key=_level_order,
    )
    if not levels:
        return
    counts = [[_solved_of(run.run, level) for level in levels] for run in runs]

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.patches import Patch

        width = 0.8 / len(runs)
        for index, of_run in enumerate(counts):
            at = np.arange(len(levels)) - 0.4 + width * (index + 0.5)
            shares = [solved / max(total, 1) for solved, total, _ in of_run]
            single = [mean for *_, mean in of_run]
            axes.bar(at, shares, width * 0.9, color=theme.of(index), alpha=_LIGHT)
            axes.bar(at, single, width * 0.9, color=theme.of(index))
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
        percent(axes.yaxis)
        colour = theme.muted if len(runs) > 1 else theme.of(0)
        shades = [
            Patch(color=colour, alpha=_LIGHT, lw=0, label="any sample is right"),
            Patch(color=colour, label="a single sample"),
        ]
        legend(axes, [run.name for run in runs], theme, shades)

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


def solved(runs: Sequence[Measured]) -> Iterator[Picture]:
    """How many problems have how many right samples."""
    judged = [
        (index, run.name, _share_counts(run.run))
        for index, run in enumerate(runs)
        if run.run.has_verdicts
    ]
    if not judged:
        return

    def draw(axes: Any, theme: Theme) -> None:
        width = 0.86 / len(judged)
        for position, (index, _, counts) in enumerate(judged):
            at = np.arange(len(_SHARES)) - 0.43 + width * (position + 0.5)
            axes.bar(at, counts / counts.sum(), width * 0.94, color=theme.of(index))
        axes.set_xticks(range(len(_SHARES)), ["none", *["" for _ in _SHARES[1:-1]], "all"])
        axes.set_xlabel("share of a problem's samples that is right")
        axes.set_ylabel("problems")
        axes.grid(False, axis="x")
        percent(axes.yaxis)
        legend(axes, [run.name for run in runs], theme)

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


def margins(runs: Sequence[Measured]) -> Iterator[Picture]:
    """How clear the votes were, and whether clear votes are right."""
    voted = [(i, run.name, _margin_counts(run.run)) for i, run in enumerate(runs)]
    voted = [entry for entry in voted if entry[2].sum()]
    if not voted:
        return
    kinds = ("vote right", "vote wrong", "not judged")

    def draw(axes: Any, theme: Theme) -> None:
        from matplotlib.ticker import MaxNLocator

        stacked = []
        if len(runs) == 1:
            below = np.zeros(len(_MARGINS) - 1)
            colours = (theme.right, theme.wrong, theme.muted)
            for kind, colour, counts in zip(kinds, colours, voted[0][2], strict=True):
                if counts.any():
                    bars = axes.bar(_MARGINS[:-1], counts, 0.094, below, align="edge", color=colour)
                    bars.set_label(kind)
                    stacked.append(bars)
                    below = below + counts
        else:
            for index, _, counts in voted:
                axes.stairs(counts.sum(axis=0), _MARGINS, color=theme.of(index), lw=2)
        axes.set_xlabel("lead of the winner over the runner-up, share of votes")
        axes.set_ylabel("problems")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlim(0, 1)
        axes.grid(False, axis="x")
        percent(axes.xaxis)
        legend(axes, [run.name for run in runs], theme, stacked)

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


def _points(curve: Curve) -> Iterator[tuple[int, float, float, float]]:
    return zip(curve.ks, curve.mean, curve.low, curve.high, strict=True)


_APPS_LEVELS = ("introductory", "interview", "competition")


def _level_order(level: str) -> tuple[int, list[tuple[int, str]]]:
    rank = _APPS_LEVELS.index(level) if level in _APPS_LEVELS else len(_APPS_LEVELS)
    return rank, natural_order(level)


def _solved_of(run: Run, level: str) -> tuple[int, int, float]:
    """Problems solved by any sample, problems, mean share of right samples."""
    judged = [o for o in run.outcomes if o.difficulty == level and o.judged]
    shares = [o.right / o.judged for o in run.fixed if o.difficulty == level and o.judged]
    return sum(o.right > 0 for o in judged), len(judged), float(np.mean(shares or [0.0]))


def _share_counts(run: Run) -> np.ndarray:
    counts = np.zeros(len(_SHARES), dtype=int)
    for outcome in run.fixed:
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
