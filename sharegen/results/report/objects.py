"""A report's numbers as one object, for programs: `sharegen report --json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sharegen.results.report.comparison import comparisons
from sharegen.results.report.curves import Curve
from sharegen.results.report.measure import Measured


def as_object(runs: Sequence[Measured]) -> dict[str, Any]:
    """Every run with its curves; with two or more, how the others compare with the first."""
    return {
        "runs": [_run(run) for run in runs],
        "comparisons": [asdict(found) for found in comparisons(runs)],
    }


def _run(measured: Measured) -> dict[str, Any]:
    run = measured.run
    curves = (("pass@k", measured.passed), ("maj@k", measured.majority))
    return {
        "name": run.name,
        "path": str(run.path),
        "problems": len(run.outcomes),
        "samples": sum(len(outcome.samples) for outcome in run.outcomes),
        "bad_rows": run.bad_rows,
        "notes": list(measured.notes),
        "answers": run.file.answers.get("hash"),
        "environment": run.file.environment,
        "curves": {name: _points(curve) for name, curve in curves if curve is not None},
    }


def _points(curve: Curve) -> list[dict[str, float]]:
    rows = zip(curve.ks, curve.mean, curve.low, curve.high, strict=True)
    return [{"k": k, "mean": mean, "low": low, "high": high} for k, mean, low, high in rows]
