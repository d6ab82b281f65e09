"""One call: rows that are not measured yet, one after the other, each written when it is done."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import typer

from benchmarks.card.machine import Machine
from benchmarks.card.popular import POPULAR
from benchmarks.card.rows import ROWS, CardRow, rehearsed, together
from benchmarks.card.running import GSM8K_FILES, Ran, Setting, run_rows
from benchmarks.measurement import Measurement
from benchmarks.result_lines import add_result, read_results
from sharegen.errors import SharegenError, UsageError

_LATE, _LATE_SECONDS = 3, 60
"""A row is stopped that takes so many times what was estimated, and so many seconds more."""


@dataclass(frozen=True)
class CardSettings:
    """names: of rows, all where there are none. popular: the popular shapes' are all. device: auto,
    cuda or cpu: which rows. budget: seconds. results: the folder that files go to, or a file of
    lines. busy: others use the machine.
    """

    results: Path
    names: Sequence[str] = ()
    device: str = "auto"
    budget: float | None = None
    gsm8k: Path | None = None
    rehearse: bool = False
    busy: bool = False
    popular: bool = False


@dataclass(frozen=True)
class State:
    """A row, and why it is not run now, if it is not."""

    row: CardRow
    why_not: str | None


def chosen(names: Sequence[str], popular: bool = False) -> list[CardRow]:
    """Rows by name, in the order of their importance. Raises UsageError."""
    rows = (*ROWS, *POPULAR)
    known = [row.name for row in rows]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise UsageError(f"--rows {wrong[0]}: there is no such row: --list shows them")
    if not names:
        return list(POPULAR if popular else ROWS)
    return [row for row in rows if row.name in names]


def states(asked: CardSettings, machine: Machine) -> Iterator[State]:
    """Each row that was asked for."""
    _check_data(asked.gsm8k)
    measured = read_results(asked.results)
    done = {(each.row, each.commit, each.card.label) for each in measured}
    for row in chosen(asked.names, asked.popular):
        name, found = row.name, rehearsed(row) if asked.rehearse else row
        if found is None:
            yield State(row, "it cannot be rehearsed on a CPU")
        elif (why := _lacks(found, asked, machine)) is not None:
            yield State(found, why)
        elif (name, machine.commit, machine.card(found.gpus).label) in done:
            yield State(found, "it is measured")
        else:
            yield State(found, None)


def _check_data(folder: Path | None) -> None:
    for name in GSM8K_FILES if folder is not None else ():
        assert folder is not None
        if not (folder / name).is_file():
            raise UsageError(f"--gsm8k {folder}: there is no file {name} in it")


def _lacks(row: CardRow, asked: CardSettings, machine: Machine) -> str | None:
    """Why this machine cannot run it."""
    kind = "cuda" if row.gpus else "cpu"
    if asked.device not in ("auto", kind):
        return f"it is for a {'GPU' if row.gpus else 'CPU'}"
    chosen_by_name = asked.names or asked.rehearse
    if asked.device == "auto" and not row.gpus and machine.gpus and not chosen_by_name:
        return "it is for a CPU: --device cpu, or --rows with its name"
    if len(machine.gpus) < row.gpus:
        return f"it needs {row.gpus} GPU{'s' if row.gpus > 1 else ''}, of {len(machine.gpus)} here"
    least = min((gpu.gib for gpu in machine.gpus[: row.gpus]), default=0.0)
    if row.gpus and least < row.gib:
        return f"it needs {row.gib} GiB on each GPU, of {least:.0f} here"
    if row.card and not asked.names and row.card not in machine.gpus[0].name:
        return f"it is for an {row.card}: --rows {row.name} measures it here"
    return None


def measure_rows(asked: CardSettings, machine: Machine) -> bool:
    """Measure what is left; a line of JSON on stdout for each. Whether all of these succeeded."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the row's command ends, too
    deadline = None if asked.budget is None else time.monotonic() + asked.budget
    setting = Setting(asked.gsm8k, asked.rehearse, deadline)
    rows, failed = [], False
    for state in states(asked, machine):
        if state.why_not is None:
            rows.append(state.row)
        else:
            typer.echo(f"{state.row.name}: left out: {state.why_not}", err=True)
    groups = list(together(rows))
    while groups:
        group = groups.pop(0)
        left = None if deadline is None else deadline - time.monotonic()
        fit = list(_fitting(group, left))
        for row in (row for row in group if row not in fit):
            why = f"it takes about {row.start} s to start and {row.seconds} s"
            typer.echo(f"{row.name}: left out: {why}, more than is left of the budget", err=True)
        measured = _measure_group(fit, setting, machine, asked) if fit else 0
        if measured < len(fit):
            failed = True
            if rest := fit[measured + 1 :]:  # with another start; last of all if none succeeded
                groups.insert(0 if measured else len(groups), rest)
    return not failed


def _fitting(group: Sequence[CardRow], left: float | None) -> Iterator[CardRow]:
    """The rows of one engine that end within the seconds that are left, the first ones first."""
    taken = group[0].start
    for row in group:
        if left is None or taken + row.seconds <= left:
            taken += row.seconds
            yield row


def _measure_group(
    rows: Sequence[CardRow], setting: Setting, machine: Machine, asked: CardSettings
) -> int:
    """Measure rows of one engine, and write each at once. Return how many succeeded.

    Whatever goes wrong with one, an engine that hangs too, is said, and costs no other row.
    """
    names = ", ".join(row.name for row in rows)
    seconds = rows[0].start + sum(row.seconds for row in rows)
    typer.echo(f"about {seconds} s: {names}", err=True)
    begun, done = time.monotonic(), 0
    most = _LATE * seconds + _LATE_SECONDS
    if setting.deadline is None or begun + most < setting.deadline:
        late = f"it took more than {most} s, and was estimated to take {seconds}"
        setting = replace(setting, deadline=begun + most, late=late)
    try:
        for row, ran in zip(rows, run_rows(rows, setting), strict=True):
            path = add_result(measurement(row, ran, machine, asked), asked.results)
            numbers = ran.numbers
            line = {"row": row.name, "tokens_per_second": numbers.tokens_per_second,
                    "seconds": numbers.seconds, "start_seconds": numbers.start_seconds,
                    "after_seconds": round(time.monotonic() - begun, 1)}  # fmt: skip
            typer.echo(json.dumps(line | {"file": str(path)}))
            done += 1
    except (SharegenError, LookupError, ValueError, ArithmeticError, AssertionError, OSError) as e:
        failed = rows[min(done, len(rows) - 1)]
        said = str(e) if isinstance(e, SharegenError) else repr(e)
        typer.echo(f"{failed.name}: failed: {said}", err=True)
    return done


def measurement(row: CardRow, ran: Ran, machine: Machine, asked: CardSettings) -> Measurement:
    """What a row came to, with all that makes it count."""
    today, card = datetime.now(UTC).date(), machine.card(row.gpus)
    found = Measurement.model_construct(
        name=f"{today}-{card.short}-{row.name}", row=row.name, kind=row.kind,
        command=ran.command, date=today, commit=machine.commit,
        versions=machine.versions(row.gpus), card=card, shape=row.shape, workload=ran.workload,
        precision=row.precision, engines=ran.engines, numbers=ran.numbers, peers=ran.peers,
        busy=asked.busy, printed=ran.printed,
    )  # fmt: skip
    unknown = dict.fromkeys(found.missing(), "this machine does not tell it")
    return Measurement.model_validate(found.model_copy(update={"unknown": unknown}).model_dump())


def listed(asked: CardSettings, machine: Machine) -> Iterator[str]:
    """A line for each row: its estimated seconds, and whether it would run here.

    The start of an engine counts with the first row that it measures.
    """
    unlimited = replace(asked, budget=None)
    found = list(states(unlimited, machine))
    firsts = {group[0].name for group in together([each.row for each in found if not each.why_not])}
    total = 0
    for state in found:
        row, why = state.row, state.why_not
        seconds = row.seconds + (row.start if why or row.name in firsts else 0)
        total += 0 if why else seconds
        yield f"{row.name:<36} {seconds:>5} s  {why or 'to measure'}"
    yield f"{'to measure here':<36} {total:>5} s"
