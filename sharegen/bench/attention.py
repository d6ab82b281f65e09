"""One layer of decode attention on this machine, beside torch and FlashInfer.

The table's cases, then sweeps around the first of them; or cases of one's own. Times on a GPU are
medians over replays of a CUDA graph with a cold L2 cache. The floor is what the card of the table
could do at best.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from sharegen.bench.attention_case import FP8, TABLE, Case, parse_case
from sharegen.bench.attention_tensors import shape_of
from sharegen.bench.layer import Layer, Step, nothing_shared
from sharegen.bench.peer import FlashInfer
from sharegen.bench.timer import CpuTimer, Timer, timer_of
from sharegen.errors import SharegenError, UsageError
from sharegen.kernels.tiles import shared_memory_limit, unsupported
from sharegen.results.report import figures
from sharegen.results.report.chart import Chart, Series
from sharegen.results.report.picture import Picture

SWEEPS: dict[str, tuple[Case, ...]] = {
    "sequences": tuple(
        replace(TABLE[0], samples=n, aim=None) for n in (1, 2, 5, 10, 20, 40, 80, 160)
    ),
    "prefix": tuple(
        replace(TABLE[0], few=n, aim=None) for n in (128, 512, 1024, 2048, 4096, 8192, 16384)
    ),
    "problem": tuple(replace(TABLE[0], problem=n, aim=None) for n in (16, 64, 112, 256, 512, 1024)),
    "suffix": tuple(replace(TABLE[0], suffix=n, aim=None) for n in (1, 16, 64, 128, 256, 512)),
}
"""One length at a time, the others as in the table's first case."""

PEERS = ("sharegen", "torch", "flashinfer")
HEADINGS = ("sharegen", "aim", "floor", "of floor", "torch", "flashinfer", "MB", "GFLOP")
_EACH = "each row"  # nodes stored once, read by each row under them


def bench_attention(plot: Path | None = None, sweeps: bool = True) -> dict[str, Any]:
    """Measure the table and, if asked for, the sweeps; one line each on stderr.

    plot: a picture of the sweeps. Returns {"table": [...], "fp8": [...], "sweeps": {name: [...]}}:
    every entry a case with its bytes, operations, microseconds by peer and share of the floor; a
    peer that is not installed, has no room, or has no FP8 beside bfloat16, is None.
    """
    if plot is not None:
        if not sweeps:
            raise UsageError("--plot draws the sweeps: leave out --no-sweeps")
        figures.check_plot(plot)
    _check_gpu()
    device = torch.device("cuda")
    timer, peer = Timer(device), FlashInfer(_has_flashinfer())
    name = torch.cuda.get_device_name(device)
    print(f"{name}, bfloat16, one layer; microseconds", file=sys.stderr)
    _print_headings(HEADINGS)
    result: dict[str, Any] = {"bench": "attention", "device": name}

    def measured(cases: Sequence[Case]) -> list[dict[str, Any]]:
        found = []
        for case in cases:
            found.append(_measure(case, timer, device, torch.bfloat16, peer))
            _print_entry(case, found[-1], HEADINGS)
        return found

    result["table"], result["fp8"] = measured(TABLE), measured(FP8)
    result["sweeps"] = {}
    for sweep, cases in SWEEPS.items() if sweeps else ():
        print(f"{sweep}:", file=sys.stderr)
        result["sweeps"][sweep] = measured(cases)
    if plot is not None:
        figures.save(charts(result["sweeps"]), plot)
    return result


def bench_cases(texts: Sequence[str]) -> dict[str, Any]:
    """Measure cases given as text, on the GPU or without one on the CPU; one line each on stderr.

    Nodes are read as the engine reads them. Returns {"cases": [...]}, entries as those of the
    table; "each row" is with nodes that are stored once and read by each row under them.
    Raises UsageError for a case that contradicts itself or that no kernel serves, CapacityError for
    one that does not fit.
    """
    cases = [parse_case(text) for text in texts]
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if is_gpu else "cpu")
    dtype = torch.bfloat16 if is_gpu else torch.float32
    for case in cases if is_gpu else ():
        _check_kernels(case, device, dtype)
    headings = ["sharegen", _EACH, "torch", "MB", "GFLOP"]
    if is_gpu:
        headings[1:1] = ["floor", "of floor"]
    if not is_gpu:
        print("flashinfer needs a GPU: its column is left out", file=sys.stderr)
    elif not _has_flashinfer():
        print("flashinfer is not installed: its column is left out", file=sys.stderr)
    else:
        headings.insert(-2, "flashinfer")
    name = torch.cuda.get_device_name(device) if is_gpu else "cpu"
    kind = str(dtype).removeprefix("torch.")
    print(f"{name}, {kind}, one layer; microseconds", file=sys.stderr)
    _print_headings(headings)
    timer, peer, found = timer_of(device), FlashInfer(is_gpu and _has_flashinfer()), []
    for case in cases:
        found.append(_measure(case, timer, device, dtype, peer, as_engine=True))
        _print_entry(case, found[-1], headings)
    return {"bench": "attention --case", "device": name, "dtype": kind, "cases": found}


def _has_flashinfer() -> bool:
    return importlib.util.find_spec("flashinfer") is not None


def _check_kernels(case: Case, device: torch.device, dtype: torch.dtype) -> None:
    shape = shape_of(case, dtype)
    reason = unsupported(shape, limit=shared_memory_limit(device))
    if reason is not None:
        raise UsageError(f"--case {case}: no kernel serves it: {reason}")


def fit_and_save() -> dict[str, Any]:
    """Fit the cost model to this GPU and keep it where every run on it looks."""
    from sharegen.bench.fit import fit_costs
    from sharegen.kernels.cost import save_costs

    _check_gpu()
    name = torch.cuda.get_device_name()
    costs = fit_costs(torch.device("cuda"))
    try:
        path = save_costs(costs, name)
    except OSError as error:
        raise SharegenError(f"the cost model cannot be kept: {error}") from None
    print(f"kept in {path}", file=sys.stderr)
    return {"bench": "attention --fit", "device": name, **asdict(costs)}


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise SharegenError("bench attention: there is no CUDA GPU here to measure")


def _measure(
    case: Case,
    timer: Timer | CpuTimer,
    device: torch.device,
    dtype: torch.dtype,
    peer: FlashInfer,
    as_engine: bool = False,
) -> dict[str, Any]:
    """An entry of the result. as_engine: reads nodes as that does, and by each row, too."""
    layer = Layer(case, device, dtype)
    layer.tensors.out.fill_(float("nan"))
    ours = timer(layer.as_engine() if as_engine else layer.read_once())
    error = layer.tensors.error()
    times: dict[str, float | None] = dict.fromkeys(PEERS)
    times["sharegen"] = ours
    times["flashinfer"] = _timed(timer, peer.step(layer))
    if as_engine:
        times[_EACH] = timer(layer.read_by_each())
    if not case.fp8:
        apart = nothing_shared(case, device, dtype)
        if apart is None:
            print(f"{case}: no room for each row's own copy, so torch is left out", file=sys.stderr)
        times["torch"] = _timed(timer, apart)
    floor = case.floor if device.type == "cuda" else None
    return {
        **asdict(case), "kv_bytes": case.stored_bytes(dtype.itemsize),
        "operations": case.operations, "microseconds": times, "floor": floor,
        "of_floor": None if floor is None else floor / ours, "error": error,
    }  # fmt: skip


def _timed(timer: Timer | CpuTimer, step: Step | None) -> float | None:
    return None if step is None else timer(step)


def _number(time: float | None) -> str:
    return "-" if time is None else f"{time:,.1f}"


def _print_headings(headings: Sequence[str]) -> None:
    print(f"{'heads tree suffix':34s}" + "".join(f" {h:>12s}" for h in headings), file=sys.stderr)


def _print_entry(case: Case, entry: dict[str, Any], headings: Sequence[str]) -> None:
    times, share = entry["microseconds"], entry["of_floor"]
    cells = {
        **{peer: _number(time) for peer, time in times.items()},
        "aim": _number(case.aim),
        "floor": _number(entry["floor"]),
        "of floor": "-" if share is None else f"{share:.0%}",
        "MB": f"{entry['kv_bytes'] / 1e6:,.1f}",
        "GFLOP": f"{entry['operations'] / 1e9:,.1f}",
    }
    print(f"{case!s:34s}" + "".join(f" {cells[h]:>12s}" for h in headings), file=sys.stderr)


def charts(sweeps: dict[str, list[dict[str, Any]]]) -> list[Picture]:
    """Pictures of the sweeps: time over the length that grows, for each peer, and the floor."""
    lengths = {"prefix": "few", "problem": "problem", "suffix": "suffix"}
    found = []
    for sweep, entries in sweeps.items():
        name = lengths.get(sweep)
        x = [e[name] if name else e["problems"] * e["samples"] for e in entries]
        times = {peer: [e["microseconds"][peer] for e in entries] for peer in PEERS}
        times["floor"] = [e["floor"] for e in entries]
        series = [
            Series(
                label,
                [(at, time) for at, time in zip(x, y, strict=True) if time is not None],
                dashed=label == "floor",
            )
            for label, y in times.items()
        ]
        chart = Chart(sweep, sweep, sweep, "microseconds a layer", series, x_log=True, y_log=True)
        found.append(chart.picture())
    return found
