"""Functions run by the ranks of one engine, each a process, over gloo on a CPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from sharegen.engine.model.tensor_parallel.ranks import Ranks, connect
from tests.engine.parallel.forked import CONTEXT


def on_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(ranks, *arguments)` on each of `size` processes: what they return, by rank.

    work: a function of a module, so that a new process finds it.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = (size, folder, dict(os.environ), work, arguments)
        mp.start_processes(_run, given, size, start_method=CONTEXT.get_start_method())
        return [torch.load(Path(folder) / f"{rank}", weights_only=False) for rank in range(size)]


def _run(
    rank: int,
    size: int,
    folder: str,
    environment: dict[str, str],
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environment)  # what a test has set since the server began
    torch.set_num_threads(1)
    ranks: Ranks = connect(
        rank, size, f"file://{folder}/meeting", torch.device("cpu"), timedelta(minutes=2)
    )
    torch.save(work(ranks, *arguments), Path(folder) / f"{rank}")
    torch.distributed.destroy_process_group()
