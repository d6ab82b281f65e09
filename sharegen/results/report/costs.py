"""Pictures of what a run cost: lengths, tokens per second, what sharing saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sharegen.results.report.measure import Measured, prompt_tokens
from sharegen.results.report.picture import Picture, Theme, legend, percent


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

    def draw(axes: Any, theme: Theme) -> None:
        for index, of_run in enumerate(drawn):
            share = np.histogram(of_run, edges)[0] / len(of_run)
            axes.stairs(share, edges, fill=len(runs) == 1, color=theme.of(index), lw=2)
        axes.set_xlabel("tokens in a completion")
        axes.set_ylabel("completions")
        axes.set_xlim(0, edges[-1])
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
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

    def draw(axes: Any, theme: Theme) -> None:
        for index, run in timed:
            ends = [end / seconds for end, _ in run.rate]
            rates = [rate for _, rate in run.rate]
            axes.stairs(rates, [0, *ends], baseline=None, color=theme.of(index), lw=1.8)
        axes.set_xlabel(f"{unit} since the start")
        axes.set_ylabel("tokens per second")
        axes.set_xlim(0, longest / seconds)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
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


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _short(value: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
