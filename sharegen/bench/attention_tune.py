"""Sweep the tiles of the attention kernels on the device at hand, over the one-layer table.

    python -m sharegen.bench.attention_tune [--out FILE.json] [--check]

Every number is a median over CUDA-graph replays with a cold L2. Kernels are compiled first, by
several processes into Triton's cache.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharegen.bench.attention_case import TABLE, Case, Tensors, Timer
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.plan import Plan
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.suffix import suffix_attention
from sharegen.kernels.tiles import Tile

SHARED = [
    Tile(*t)
    for t in [
        (64, 64, 4, 2), (64, 64, 4, 3), (64, 32, 4, 3), (64, 32, 4, 4), (64, 128, 4, 2),
        (128, 64, 8, 2), (128, 64, 8, 3), (128, 128, 8, 2), (128, 32, 8, 4), (128, 64, 4, 2),
    ]
]  # fmt: skip
SUFFIX = [
    Tile(16, *t)
    for t in [
        (32, 2, 4), (32, 2, 5), (32, 2, 7), (32, 2, 9), (32, 1, 4), (32, 1, 5), (32, 1, 7),
        (32, 4, 5), (32, 4, 7), (64, 4, 4), (64, 4, 5), (64, 4, 7), (64, 2, 4), (64, 2, 5),
        (16, 1, 5), (16, 1, 7), (16, 1, 9), (128, 4, 4), (128, 4, 5),
    ]
]  # fmt: skip
WORKERS = 14


def _shared(tensors: Tensors, plan: Plan, tma: bool) -> None:
    shared_attention(
        tensors.q, tensors.k_cache, tensors.v_cache, plan, tensors.position,
        scale=tensors.scale, tma=tma,
    )  # fmt: skip


def _suffix(
    tensors: Tensors, plan: Plan, tile: Tile, beside: torch.cuda.Stream | None = None
) -> None:
    suffix_attention(
        *tensors.inputs(plan), scale=tensors.scale, out=tensors.out, tile=tile, beside=beside
    )


def _library(tensors: Tensors, timer: Timer) -> dict[str, float]:
    """What torch's own attention takes for the first level alone, as one dense problem."""
    case = tensors.case
    q = tensors.q.view(case.rows, case.num_kv_heads, -1, case.head_size).permute(1, 0, 2, 3)
    q = q.reshape(1, case.num_kv_heads, -1, case.head_size).contiguous()
    k, v = (
        c.flatten(0, 1)[: case.few].transpose(0, 1)[None]
        for c in (tensors.k_cache, tensors.v_cache)
    )
    times = {}
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        try:
            with sdpa_kernel(backend):
                times[backend.name] = timer(lambda: scaled_dot_product_attention(q, k, v))
        except Exception as error:
            print("  ", backend.name, str(error)[:100])
    return times


def _plan(
    tensors: Tensors, tile: Tile, grid: str = "2", dtype: torch.dtype = torch.float32
) -> Plan:
    plan = Plan(tensors.shape, tensors.case.rows, tensors.q.device, tile=tile, partial_dtype=dtype)
    plan.update(tensors.layout)
    if grid == "all":
        plan.num_programs = max(1, int(plan.counts[0]) * tensors.shape.num_kv_heads)
    else:
        plan.num_programs = int(grid) * torch.cuda.get_device_properties(0).multi_processor_count
    return plan


def _key(tile: Tile) -> str:
    return "x".join(map(str, astuple(tile)))


def warm(part: int, device: torch.device) -> None:
    """Compile this worker's share of all kernels, on small cases of the table's shapes."""
    shapes: dict[tuple[int, int], Case] = {}
    for case in TABLE:
        if (case.num_heads, case.num_kv_heads) not in shapes:
            shapes[case.num_heads, case.num_kv_heads] = replace(
                case, few=256, problem=80, problems=2, samples=40
            )
    halves = (torch.float32, torch.bfloat16)
    shared = [
        (s, t, tma, d) for s in shapes for t in SHARED for tma in (False, True) for d in halves
    ]
    suffix = [(s, t, d) for s in shapes for t in SUFFIX for d in halves]
    built = {shape: Tensors(case, device) for shape, case in shapes.items()}
    for shape, tile, tma, dtype in shared[part::WORKERS]:
        with contextlib.suppress(Exception):  # a tile that does not fit: the sweep says so
            _shared(built[shape], _plan(built[shape], tile, dtype=dtype), tma)
    stream = torch.cuda.Stream()
    for shape, tile, dtype in suffix[part::WORKERS]:
        with contextlib.suppress(Exception):
            plan = _plan(built[shape], SHARED[0], dtype=dtype)
            _suffix(built[shape], plan, tile)
            _suffix(built[shape], plan, tile, stream)
    torch.cuda.synchronize()


def sweep(case: Case, device: torch.device, timer: Timer) -> dict:
    """Microseconds of every tile of both phases, and of whole attention in several ways."""
    tensors = Tensors(case, device)
    shared: dict[str, float] = {}
    suffix: dict[str, float] = {}
    failures: dict[str, str] = {}
    best: dict[str, tuple] = {}
    for tile in SHARED:
        for tma in (False, True):
            for grid in ("1", "2", "all"):
                name = f"{_key(tile)}{'t' if tma else ''}@{grid}"
                try:
                    plan = _plan(tensors, tile, grid)
                    shared[name] = timer(partial(_shared, tensors, plan, tma))
                    best[name] = (tile, tma, grid)
                except Exception as error:
                    failures[name] = str(error)[:80]
                    break
    top = sorted(shared, key=lambda k: shared[k])
    plan = _plan(tensors, best[top[0]][0])
    _shared(tensors, plan, best[top[0]][1])
    tiles = {}
    for tile in SUFFIX:
        try:
            suffix[_key(tile)] = timer(partial(_suffix, tensors, plan, tile))
            tiles[_key(tile)] = tile
        except Exception as error:
            failures[_key(tile)] = str(error)[:80]
    top_suffix = sorted(suffix, key=lambda k: suffix[k])

    whole: dict[str, float] = {}
    errors: dict[str, float] = {}
    side = torch.cuda.Stream()
    urgent = torch.cuda.Stream(priority=-1)
    distinct = list({best[k][:2]: None for k in top})[:3]
    for tile, tma in distinct:
        for grid in ("1", "2", "all"):
            for dtype in (torch.float32, torch.bfloat16):
                for way, stream in (("seq", None), ("side", side), ("urgent", urgent)):
                    for suffix_name in top_suffix[: 1 if stream is None else 3]:
                        bits = "b16" if dtype == torch.bfloat16 else "f32"
                        name = f"{way} {_key(tile)}{'t' if tma else ''}@{grid} {suffix_name} {bits}"
                        plan = _plan(tensors, tile, grid, dtype)

                        def run(
                            plan: Plan = plan,
                            tma: bool = tma,
                            stream: torch.cuda.Stream | None = stream,
                            suffix_tile: Tile = tiles[suffix_name],
                        ) -> None:  # fmt: skip
                            decode_attention(
                                *tensors.inputs(plan), scale=tensors.scale, out=tensors.out,
                                beside=stream, tma=tma, suffix_tile=suffix_tile,
                            )  # fmt: skip

                        tensors.out.fill_(float("nan"))
                        whole[name] = timer(run)
                        errors[name] = tensors.error()
    return {
        "case": str(case), "aim": case.aim, "floor": round(case.floor, 1),
        "library": _library(tensors, timer), "shared": shared, "suffix": suffix, "whole": whole,
        "errors": errors, "failures": failures,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="first the kernel tests, in bfloat16")
    parser.add_argument("--warm", type=int)
    options = parser.parse_args()
    device = torch.device("cuda")
    if options.warm is not None:
        warm(options.warm, device)
        return
    start = time.perf_counter()
    if options.check:
        command = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), "tests/kernels"]
        subprocess.run([*command, "-k", "bfloat16 or not (float32 or float16)"], check=False)
        print(f"tests {time.perf_counter() - start:.0f} s", flush=True)
    workers = [
        subprocess.Popen([sys.executable, "-m", __spec__.name, "--warm", str(i)], env=os.environ)
        for i in range(WORKERS)
    ]
    for worker in workers:
        worker.wait()
    print(f"compiled {time.perf_counter() - start:.0f} s", flush=True)
    timer = Timer(device)
    results = []
    for case in TABLE:
        result = sweep(case, device, timer)
        results.append(result)
        if options.out:
            options.out.write_text(json.dumps(results))
        print(f"== {case}: floor {case.floor:.0f} aim {case.aim}", flush=True)
        for phase, count in (("shared", 5), ("suffix", 4), ("whole", 6)):
            top = sorted(result[phase].items(), key=lambda pair: pair[1])[:count]
            print(f"  {phase}: " + ", ".join(f"{k} {v:.1f}" for k, v in top))
        sequential = {k: v for k, v in result["whole"].items() if k.startswith("seq")}
        print("  seq: {} {:.1f}".format(*min(sequential.items(), key=lambda pair: pair[1])))
        print(f"  library, first level alone: {result['library']}")
        print(f"  worst error {max(result['errors'].values()):.4f}", end=" ")
        print(f"failures {len(result['failures'])} {list(result['failures'].items())[:2]}")
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
