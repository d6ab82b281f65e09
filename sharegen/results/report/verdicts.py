"""Pictures of what was right: the curves, difficulty, vote margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sharegen.results.report.axes import Axes, LegendEntry, Scale, nice, shares
from sharegen.results.report.curves import Curve
from sharegen.results.report.measure import Measured
from sharegen.results.report.outcomes import Run
from sharegen.results.report.picture import Picture, Theme, legend, shortened
from sharegen.results.scoring.passk import SUBSETS
from sharegen.results.scoring.vote import natural_order

_LIGHT = 0.4
"""How opaque the lighter one of two bars is."""


def curves(runs: Sequence[Measured]) -> Iterator[Picture]:
    """Draw pass@k and maj@k against k, with their intervals."""
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

    def draw(axes: Axes, theme: Theme) -> None:
        largest = max(curve.ks[-1] for *_, curve in lines)
        several = len(runs) > 1
        colours = [
            theme.of(index if several else int(measure == "maj@k"))
            for _, measure, index, _ in lines
        ]
        for (*_, curve), colour in zip(lines, colours, strict=True):  # under all curves
            axes.band(curve.ks, curve.low, curve.high, colour)
        for (_, measure, _, curve), colour in zip(lines, colours, strict=True):
            is_vote = measure == "maj@k"
            dashed, dots = is_vote and several, largest <= 16
            axes.line(curve.ks, curve.mean, colour, dashed, dots)
            if curve.ks == (1,):
                axes.line((1, 1), (curve.low[0], curve.high[0]), colour)
        ticks = [t * 10**e for e in range(7) for t in (1, 2, 5) if t * 10**e <= largest]
        label = f"samples k (maj@k: {SUBSETS} random subsets)" if votes else "samples k"
        named = [(tick, f"{tick:,}") for tick in ticks]
        axes.x = Scale(1, largest, label, named, log=largest > 1)
        top = max(high for *_, curve in lines for high in curve.high)
        axes.y = shares(min(1.0, top * 1.08) if top else 1.0, "problems right")
        measures = ["pass@k", "maj@k"] if votes else ["pass@k"]
        keys = [
            LegendEntry(
                measure,
                theme.muted if several else theme.of(number),
                line=True,
                dashed=several and number == 1,
            )
            for number, measure in enumerate(measures)
        ]
        legend(axes, [run.name for run in runs], theme, keys)

    yield Picture(
        "curve",
        "Right answers against samples",
        f"{'; '.join(meanings)}. Bands: 95% intervals over problems, "
        "bootstrap or, where all are right, or none, exact.",
        ("run", "measure", "k", "mean", "95% interval"),
        tuple(
            (name, measure, str(k), f"{mean:.1%}", f"{low:.1%} to {high:.1%}")
            for name, measure, _, curve in lines
            for k, mean, low, high in _points(curve)
        ),
        draw,
    )


def difficulties(runs: Sequence[Measured]) -> Iterator[Picture]:
    """Draw the solved problems in each difficulty, where the dataset has any."""
    levels = sorted(
        {o.difficulty for run in runs for o in run.run.outcomes if o.difficulty and o.judged},
        key=_level_order,
    )
    if not levels:
        return
    counts = [[_solved_of(run.run, level) for level in levels] for run in runs]

    def draw(axes: Axes, theme: Theme) -> None:
        width = 0.8 / len(runs)
        for index, of_run in enumerate(counts):
            lefts = [place - 0.4 + width * index for place in range(len(levels))]
            some = [solved / max(total, 1) for solved, total, _ in of_run]
            single = [mean for *_, mean in of_run]
            axes.bars(lefts, some, width * 0.9, theme.of(index), opacity=_LIGHT)
            axes.bars(lefts, single, width * 0.9, theme.of(index))
            for left, (solved, total, _), share in zip(lefts, of_run, some, strict=True):
                place, upright = (left + width * 0.45, share), width >= 0.15
                shift, anchor = ((0, -4), "middle") if upright else ((3.5, -4), "start")
                label = f"{solved:,}/{total:,}"
                axes.words(place, label, theme.muted, anchor=anchor, shift=shift, upright=upright)
        named = [(place, shortened(level, 16)) for place, level in enumerate(levels)]
        axes.x = Scale(-0.5, len(levels) - 0.5, ticks=named, lines=False)
        quarters = [(tick, f"{tick:.0%}") for tick in (0, 0.25, 0.5, 0.75, 1)]
        axes.y = Scale(0, 1.12, "problems right", quarters)
        colour = theme.muted if len(runs) > 1 else theme.of(0)
        shades = [
            LegendEntry("any sample is right", colour, opacity=_LIGHT),
            LegendEntry("a single sample", colour),
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

    def draw(axes: Axes, theme: Theme) -> None:
        width = 0.86 / len(judged)
        most = 0.0
        for position, (index, _, counts) in enumerate(judged):
            heights = (counts / counts.sum()).tolist()
            lefts = [place - 0.43 + width * position for place in range(len(_SHARES))]
            axes.bars(lefts, heights, width * 0.94, theme.of(index))
            most = max(most, *heights)
        last = len(_SHARES) - 1
        named = [(0.0, "none"), (float(last), "all")]
        label = "share of a problem's samples that is right"
        axes.x = Scale(-0.5, last + 0.5, label, named, lines=False)
        axes.y = shares(most * 1.05, "problems")
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

    def draw(axes: Axes, theme: Theme) -> None:
        keys: list[LegendEntry] = []
        most = max(int(counts.sum(axis=0).max()) for *_, counts in voted)
        if len(runs) == 1:
            below = [0] * (len(_MARGINS) - 1)
            colours = (theme.right, theme.wrong, theme.muted)
            for kind, colour, counts in zip(kinds, colours, voted[0][2].tolist(), strict=True):
                if any(counts):
                    axes.bars(_MARGINS[:-1].tolist(), counts, 0.094, colour, below)
                    keys.append(LegendEntry(kind, colour))
                    below = [a + b for a, b in zip(below, counts, strict=True)]
        else:
            for index, _, counts in voted:
                axes.steps(counts.sum(axis=0).tolist(), _MARGINS.tolist(), theme.of(index))
        axes.x = replace(
            shares(1.0, "lead of the winner over the runner-up, share of votes"), lines=False
        )
        ticks = [(tick, f"{tick:,.0f}") for tick in nice(most * 1.05, whole=True)]
        axes.y = Scale(0, most * 1.05, "problems", ticks)
        legend(axes, [run.name for run in runs], theme, keys)

    yield Picture(
        "margins",
        "Vote margins",
        "How far the winning answer leads the next one: a close vote is less often right.",
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
    """Count [vote right, vote wrong, not judged] x tenths of the margin."""
    counts = np.zeros((3, len(_MARGINS) - 1), dtype=int)
    for outcome in run.outcomes:
        if outcome.margin is not None:
            row = 2 if outcome.vote_right is None else int(not outcome.vote_right)
            counts[row, min(int(outcome.margin * 10 + 1e-9), 9)] += 1
    return counts
