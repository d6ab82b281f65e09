"""Functions run by the ranks of one engine, each a process, over gloo on a CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp

from sharegen.engine.model.ranks import Ranks, connect


def on_ranks(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(ranks, *arguments)` on each of `size` processes: what they return, by rank.

    work: a function of a module, so that a new process finds it.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_run, (size, folder, work, arguments), size)
        return [torch.load(Path(folder) / f"{rank}", weights_only=False) for rank in range(size)]


def _run(
    rank: int, size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    ranks: Ranks = connect(
        rank, size, f"file://{folder}/meeting", torch.device("cpu"), timedelta(minutes=2)
    )
    torch.save(work(ranks, *arguments), Path(folder) / f"{rank}")
    torch.distributed.destroy_process_group()
