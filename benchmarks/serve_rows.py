"""What was measured of a server, as a row of the tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.card.machine import Machine
from benchmarks.measurement import Measurement, Numbers, Workload


def said_by(flags: Sequence[str]) -> dict[str, str]:
    """Flags of `sharegen serve`, each written as --name=value, by their names in Python."""
    pairs = (flag.removeprefix("--").partition("=")[::2] for flag in flags)
    return {name.replace("-", "_"): value for name, value in pairs}


def serve_row(
    what: str,
    model: str,
    flags: Sequence[str],
    machine: Machine,
    workload: Workload,
    numbers: Numbers,
    printed: Any = None,
) -> Measurement:
    """The row of what the running command has measured. what: the first word of its name."""
    said = said_by(flags)
    on_gpu = bool(machine.gpus) and said.get("device") != "cpu"
    each = math.prod(int(said.get(name, 1)) for name in ("workers", "tensor_parallel_size"))
    gpus = each if on_gpu else 0
    card, today = machine.card(gpus), datetime.now(UTC).date()
    row = f"{what}-{Path(model).name}"
    found = Measurement.model_construct(
        name=f"{today}-{card.short}-{row}", row=row, kind="serve", date=today,
        commit=machine.commit, command="python -m benchmarks " + " ".join(sys.argv[1:]),
        versions=machine.versions(gpus), card=card, shape=Path(model).name, workload=workload,
        numbers=numbers, printed=printed,
    )  # fmt: skip
    unknown = dict.fromkeys(found.missing(), "this machine does not tell it")
    return Measurement.model_validate(found.model_copy(update={"unknown": unknown}).model_dump())
