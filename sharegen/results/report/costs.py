"""Pictures of what a run cost: lengths, tokens per second, what sharing saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sharegen.results.report.axes import Axes, Box, Scale, nice, shares
from sharegen.results.report.measure import Measured, prompt_tokens
from sharegen.results.report.picture import Picture, Theme, legend, shortened

_LEAST = 3.0
"""Pixels of a bar, however little it stands for."""


def lengths(runs: Sequence[Measured]) -> Iterator[Picture]:
    """How long the completions are."""
    drawn = [np.array([s.record.num_tokens for s in run.run.samples]) for run in runs]
    cut = [
        sum(s.record.finish_reason in ("length", "context") for s in run.run.samples)
        for run in runs
    ]
    # Whole tokens in every bin, so that no bin is fuller than its neighbours by rounding alone.
    longest = max(int(of_run.max()) for of_run in drawn)
    edges = np.arange(0, longest + 2 + longest // 30, longest // 30 + 1)

    def draw(axes: Axes, theme: Theme) -> None:
        bins = [(np.histogram(of_run, edges)[0] / len(of_run)).tolist() for of_run in drawn]
        for index, share in enumerate(bins):
            axes.steps(share, edges.tolist(), theme.of(index), filled=len(runs) == 1)
        last = float(edges[-1])
        ticks = [(tick, f"{tick:,.0f}") for tick in nice(last, whole=True)]
        axes.x = Scale(0, last, "tokens in a completion", ticks)
        axes.y = shares(max(map(max, bins)) * 1.05, "completions")
        legend(axes, [run.name for run in runs], theme)

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
            for run, of_run, ended in zip(runs, drawn, cut, strict=True)
        ),
        draw,
    )


def rates(runs: Sequence[Measured]) -> Iterator[Picture]:
    """Tokens per second over the run, where it recorded its progress."""
    timed = [(index, run) for index, run in enumerate(runs) if run.rate]
    if not timed:
        return
    longest = max(run.rate[-1][0] for _, run in timed)
    unit, seconds = next(
        (name, size)
        for name, size in (("hours", 3600), ("minutes", 60), ("seconds", 1))
        if longest >= 3 * size or size == 1
    )

    def draw(axes: Axes, theme: Theme) -> None:
        for index, run in timed:
            ends = [end / seconds for end, _ in run.rate]
            axes.steps([rate for _, rate in run.rate], [0, *ends], theme.of(index))
        end = longest / seconds
        fastest = 1.05 * max(rate for _, run in timed for _, rate in run.rate) or 1.0
        ticks = [(tick, f"{tick:.4g}") for tick in nice(end)]
        axes.x = Scale(0, end, f"{unit} since the start", ticks)
        ticks = [(tick, f"{tick:,.4g}") for tick in nice(fastest)]
        axes.y = Scale(0, fastest, "tokens per second", ticks)
        legend(axes, [run.name for run in runs], theme)

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


def sharing(runs: Sequence[Measured]) -> Iterator[Picture]:
    """Prompt tokens asked and computed, where the run recorded them."""
    saved = [(index, run.name, *prompt_tokens(run.run)) for index, run in enumerate(runs)]
    saved = [entry for entry in saved if entry[2] and entry[3]]
    if not saved:
        return

    def draw(axes: Axes, theme: Theme) -> None:
        most = max(asked for *_, asked, _ in saved)
        for position, (index, _, asked, computed) in enumerate(saved):
            for offset, tokens, opacity, label in (
                (0.2, asked, 0.4, f"{asked:,} asked"),
                (-0.2, computed, 1.0, f"{computed:,} computed ({asked / computed:,.1f}x fewer)"),
            ):
                at = len(saved) - 1 - position + offset
                start, end = (0.0, at - 0.18), (float(tokens), at + 0.18)
                axes.marks.append(Box(start, end, theme.of(index), opacity, _LEAST))
                inside = tokens > 0.55 * most
                place = (0.0 if inside else float(tokens), at)
                axes.words(place, label, theme.ink, anchor="start", shift=(7, 3.5))
        names = [name if len(runs) > 1 else "" for _, name, *_ in saved]
        rows = [(len(saved) - 1 - i, shortened(name, 16)) for i, name in enumerate(names)]
        room = 0.6 if len(saved) > 1 else 0.9
        axes.y = Scale(-room, len(saved) - 1 + room, ticks=rows, lines=False)
        ticks = [(tick, _short(tick)) for tick in nice(most, 4)]
        axes.x = Scale(0, most * 1.02, "prompt tokens", ticks)

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


def _short(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
