"""One layer of decode attention on this GPU, beside torch and FlashInfer.

The table's cases, then sweeps around the first of them. Times are medians over replays of a CUDA
graph with a cold L2 cache. The floor is what the card of the table could do at best.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sharegen.bench.attention_case import NARROW, TABLE, Case, Tensors, Timer
from sharegen.bench.layer import nothing_shared
from sharegen.errors import SharegenError, UsageError
from sharegen.kernels.plan import Plan

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
_WORKSPACE = 256 << 20  # bytes that FlashInfer asks for


def bench_attention(plot: Path | None = None, sweeps: bool = True) -> dict[str, Any]:
    """Measure the table and, if asked for, the sweeps; one line each on stderr.

    plot: a picture of the sweeps. Returns {"table": [...], "fp8": [...], "sweeps": {name: [...]}}:
    every entry a case with its bytes, operations, microseconds by peer and share of the floor; a
    peer that is not installed, has no room, or has no FP8 beside bfloat16, is None.
    """
    if plot is not None:
        _check_plot(plot, sweeps)
    _check_gpu()
    device = torch.device("cuda")
    timer = Timer(device)
    name = torch.cuda.get_device_name(device)
    print(f"{name}, bfloat16, one layer; microseconds", file=sys.stderr)
    heading = ("sharegen", "aim", "floor", "of floor", "torch", "flashinfer", "MB", "GFLOP")
    print(f"{'heads tree suffix':34s}" + "".join(f"{h:>11s}" for h in heading), file=sys.stderr)
    result: dict[str, Any] = {"bench": "attention", "device": name}
    result["table"] = [_measure(case, timer, device) for case in TABLE]
    result["fp8"] = [_measure(case, timer, device) for case in NARROW]
    result["sweeps"] = {}
    for sweep, cases in SWEEPS.items() if sweeps else ():
        print(f"{sweep}:", file=sys.stderr)
        result["sweeps"][sweep] = [_measure(case, timer, device) for case in cases]
    if plot is not None:
        draw(result["sweeps"], plot)
    return result


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


def _check_plot(plot: Path, sweeps: bool) -> None:
    """Find fault before minutes of measuring."""
    if not sweeps:
        raise UsageError("--plot draws the sweeps: leave out --no-sweeps")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'sharegen[plot]'")
    from matplotlib.backend_bases import FigureCanvasBase

    endings = FigureCanvasBase.get_supported_filetypes()
    if plot.suffix.lower().removeprefix(".") not in endings:
        raise UsageError(f"--plot {plot}: it must end in .png, .svg, .pdf or the like")
    if plot.is_dir() or not plot.parent.is_dir():
        raise UsageError(f"--plot {plot}: it must be a file in a folder that is there")


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise SharegenError("bench attention: there is no CUDA GPU here to measure")


def _measure(case: Case, timer: Timer, device: torch.device) -> dict[str, Any]:
    from sharegen.kernels.decode import decode_attention  # which needs Triton

    torch.cuda.empty_cache()  # tensors in what the case before left behind are slower to read
    tensors = Tensors(case, device)
    plan = Plan(tensors.shape, case.rows, device)
    plan.update(tensors.layout)
    tensors.out.fill_(float("nan"))
    times: dict[str, float | None] = dict.fromkeys(PEERS)
    ours = timer(
        partial(
            decode_attention, *tensors.inputs(plan), narrow=tensors.narrow, scale=tensors.scale,
            out=tensors.out,
        )
    )  # fmt: skip
    error = tensors.error()
    times["sharegen"] = ours
    if not case.narrow:
        times["flashinfer"] = _flashinfer_time(tensors, timer)
    del plan
    if not case.narrow:
        step = nothing_shared(case, device, torch.bfloat16)
        times["torch"] = None if step is None else timer(step)
        del step
    found = {
        **asdict(case), "kv_bytes": case.kv_bytes, "operations": case.operations,
        "microseconds": times, "floor": case.floor, "of_floor": case.floor / ours, "error": error,
    }  # fmt: skip
    cells = (ours, case.aim, case.floor, None, times["torch"], times["flashinfer"])
    texts = ["-" if cell is None else f"{cell:,.1f}" for cell in cells]
    texts[3] = f"{case.floor / ours:.0%}"
    texts += [f"{case.kv_bytes / 1e6:,.1f}", f"{case.operations / 1e9:,.1f}"]
    print(f"{case!s:34s}" + "".join(f"{text:>11s}" for text in texts), file=sys.stderr)
    return found


def _flashinfer_time(tensors: Tensors, timer: Timer) -> float | None:
    """FlashInfer's best parts, put together; None where it is not installed."""
    if importlib.util.find_spec("flashinfer") is None:
        return None
    return timer(_flashinfer_step(tensors))


def _flashinfer_step(tensors: Tensors) -> Callable[[], object]:
    """Prefill wrapper for every shared level, tensor-core decode wrapper for the suffixes, merged.

    Its rows are in tree order from the start.
    """
    import flashinfer

    case, shape, device = tensors.case, tensors.shape, tensors.q.device
    cache = (tensors.k_cache, tensors.v_cache)
    order = torch.from_numpy(tensors.layout.order).to(device).long()
    q = tensors.q[order]
    types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}

    def workspace() -> torch.Tensor:
        return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)

    def paging(lengths: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = -(-lengths // shape.block_size)
        starts = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        last = (lengths - 1) % shape.block_size + 1
        return starts.to(device), blocks.to(device), last.to(torch.int32).to(device)

    levels = []
    for rows, lengths, blocks in _levels(tensors):
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD")
        prefill.plan(
            rows.to(device), *paging(lengths, blocks), shape.num_heads, shape.num_kv_heads,
            case.head_size, shape.block_size, causal=False, **types,
        )  # fmt: skip
        levels.append(prefill)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(), "NHD", use_tensor_cores=True
    )
    own = paging(torch.full((case.rows,), case.suffix), tensors.block_tables[order].flatten())
    decode.plan(
        *own, shape.num_heads, shape.num_kv_heads, case.head_size, shape.block_size, **types
    )  # fmt: skip

    def step() -> torch.Tensor:
        out, lse = decode.run(q, cache, return_lse=True)
        for prefill in levels:
            flashinfer.merge_state_in_place(out, lse, *prefill.run(q, cache, return_lse=True))
        return out

    return step


def _levels(tensors: Tensors) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(row starts, lengths, blocks) of the nodes of each level of the tree."""
    layout = tensors.layout
    for position in sorted(set(layout.position.tolist())):
        (nodes,) = (layout.position == position).nonzero()
        starts = torch.from_numpy(layout.row_start[nodes].copy())
        rows = torch.cat([starts, torch.tensor([layout.row_end[nodes[-1]]], dtype=torch.int32)])
        first, last = layout.block_start[nodes[0]], layout.block_start[nodes[-1] + 1]
        lengths = torch.from_numpy(layout.length[nodes].copy())
        yield rows, lengths, torch.from_numpy(layout.blocks[first:last].copy())


def draw(sweeps: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """A picture of the sweeps: time over the length that grows, for each peer, and the floor."""
    from matplotlib.figure import Figure

    lengths = {"prefix": "few", "problem": "problem", "suffix": "suffix"}
    figure = Figure(figsize=(4 * len(sweeps), 4), layout="constrained")
    for i, (sweep, entries) in enumerate(sweeps.items()):
        axes = figure.add_subplot(1, len(sweeps), i + 1)
        x = [
            e[lengths[sweep]] if sweep in lengths else e["problems"] * e["samples"] for e in entries
        ]
        for peer in PEERS:
            y = [e["microseconds"][peer] for e in entries]
            if any(time is not None for time in y):
                axes.plot(x, [float("nan") if t is None else t for t in y], "o-", label=peer)
        axes.plot(x, [e["floor"] for e in entries], "k:", label="floor")
        axes.set(xscale="log", yscale="log", xlabel=sweep, ylabel="microseconds a layer")
    figure.axes[0].legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: {error}") from None
