"""`python -m benchmarks sums`: what adding up over the GPUs of one machine takes, by size and way.

Each sum is of bfloat16 numbers, one process a GPU, inside a CUDA graph, with the addition of a
residual behind it, as a layer of a model that is cut has it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.multiprocessing as multiprocessing

from sharegen.engine.model.tensor_parallel.ranks import WITHOUT_MULTICAST
from sharegen.errors import UsageError

SIZES = tuple(2**power for power in range(16, 28))  # bytes
_IN_A_GRAPH, _REPLAYS = 20, 20


def bench_sums(ranks: int) -> dict[str, Any]:
    """Microseconds of a sum over so many GPUs, by bytes and way; prints a line a size to stderr.

    Raises UsageError where there are fewer GPUs.
    """
    if ranks < 2 or torch.cuda.device_count() < ranks:
        found = torch.cuda.device_count()
        raise UsageError(f"--ranks {ranks}: it takes 2 or more GPUs, and here are {found}")
    os.environ.update(WITHOUT_MULTICAST)
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank, (ranks, folder), nprocs=ranks)
        rows = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return {"bench": "sums", "ranks": ranks, "us": rows}


def _rank(rank: int, ranks: int, folder: str) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    meeting = f"file://{folder}/ranks"
    dist.init_process_group(
        "nccl", init_method=meeting, rank=rank, world_size=ranks, device_id=device
    )
    group = dist.group.WORLD
    assert group is not None
    memory = symmetric_memory.empty(SIZES[-1], dtype=torch.uint8, device=device)
    symmetric_memory.rendezvous(memory, group)
    rows = []
    for size in SIZES:
        ways = _ways(memory.view(torch.bfloat16)[: size // 2], group.group_name)
        rows.append({"bytes": size} | {name: _microseconds(way) for name, way in ways.items()})
        if rank == 0:
            print(rows[-1], file=sys.stderr, flush=True)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    torch.cuda.synchronize()
    os._exit(0)  # a group is not destroyed while a captured graph holds its sums


def _ways(shared: torch.Tensor, group: str) -> dict[str, Callable[[], object]]:
    """Return ways of adding up `shared` [count], which all ranks can read, and a residual."""
    own, residual, out = (torch.zeros_like(shared) for _ in range(3))

    def nccl() -> None:
        dist.all_reduce(own)
        torch.add(residual, own, out=out)

    def two_shot() -> None:
        torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group)
        torch.add(residual, shared, out=out)

    def one_shot() -> None:
        torch.ops.symm_mem.one_shot_all_reduce_out(shared, "sum", group, out)
        out.add_(residual)

    return {"nccl": nccl, "two_shot": two_shot, "one_shot": one_shot}


def _microseconds(way: Callable[[], object]) -> float:
    """The median of replays of a graph that has it twenty times."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_IN_A_GRAPH):
            way()
    dist.barrier()
    times = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / _IN_A_GRAPH)
    return round(statistics.median(times), 1)
