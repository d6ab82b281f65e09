"""`python -m benchmarks serve-arrivals`: ChunkAttention's arrivals, through the endpoint.

The load of its figure 5 and table 4 (`papers/chunk_arrivals.py`): prompts of token ids that share
all but their last block, as requests over HTTP at the times of a Poisson process. Beside them
prompts of the same length that share nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.card.machine import find_machine
from benchmarks.measurement import Arrivals, Measurement, Numbers, Workload
from benchmarks.papers.chunk_arrivals import Load
from benchmarks.serve_clients import Asking, Prompt, ask_all
from benchmarks.serve_latency import arriving
from benchmarks.serve_rows import serve_row
from benchmarks.serving import spawned
from sharegen.bench.shapes import vocabulary
from sharegen.engine.config import EngineConfig
from sharegen.workload.recipe import RECIPES

_BUNDLED = RECIPES / "tinymath" / "model"
_BLOCK = EngineConfig().block_size


def serve_arrivals(
    model: str, load: Load, count: int, flags: Sequence[str], commit: str | None
) -> Iterator[Arrivals | Measurement]:
    """The latencies at each rate, shared and not, as soon as they are known; then the row of all.

    count: requests of each rate. flags: of `sharegen serve`.
    """
    machine = find_machine(commit)
    size = vocabulary(str(_BUNDLED) if model == "tinymath" else model)
    found = []
    with spawned(model, *flags) as server:
        asking = Asking(server.port, model, load.completion, count)
        ask_all(asking, prompts_of(load, count, size, False, "before"), 1)  # whatever starts late
        for rate in load.rates:
            for shared in (True, False):
                prompts = prompts_of(load, count, size, shared, f"{rate}")
                found.append(asyncio.run(arriving(asking, prompts, rate, shared)))
                yield found[-1]
    workload = Workload(
        name="ChunkAttention's arrivals", prefix=load.prompt, problems=count, samples=1,
        output=load.completion,
    )  # fmt: skip
    name = Path(model).name
    yield serve_row("arrivals", name, flags, machine, workload, Numbers(arrivals=tuple(found)))


def prompts_of(load: Load, count: int, size: int, shared: bool, seed: str) -> list[Prompt]:
    """Prompts of a vocabulary of `size`, which share all but their last block, or nothing.

    seed: another one shares nothing with this, so that no rate finds what one before it has left.
    """
    rng = random.Random(f"{seed} {shared}")

    def tokens(count: int) -> list[int]:
        return [rng.randrange(3, size) for _ in range(count)]

    head = load.prompt - _BLOCK
    common = tokens(head)
    return [(common if shared else tokens(head)) + tokens(_BLOCK) for _ in range(count)]
