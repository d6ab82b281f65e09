"""Requests that arrive while the engine runs: a replay of their times of arrival.

There is no server: a loop over the engine adds what has arrived, steps, and notes when samples end.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sharegen.engine.core.request import Request
from sharegen.engine.engine import Engine
from sharegen.engine.execute.process import short_collections


@dataclass(frozen=True)
class Replay:
    """What a replay took. normalised: for each request, the seconds from its arrival to its end, by
    its tokens.

    seconds: from the start to the last end. peak_bytes: of the KV that requests under way held;
    peak_batch: sequences decoded together.
    """

    normalised: list[float]
    seconds: float
    peak_bytes: int
    peak_batch: int


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return the seconds at which so many requests arrive, `rate` a second on average, each by
    itself.
    """
    rng = random.Random(seed)
    return list(itertools.accumulate(rng.expovariate(rate) for _ in range(count)))


def replay(engine: Engine, requests: Sequence[Request], arrivals: Sequence[float]) -> Replay:
    """Run requests of one sample each, which arrive at these seconds, in rising order.

    Sharing is found as they come: each is added when it arrives, and no sooner.
    """
    engine.check(*requests)
    waiting = deque(zip(arrivals, requests, strict=True))
    arrived = {request.key: at for at, request in waiting}
    block_bytes = engine.model.kv_bytes_per_token * engine.config.block_size
    normalised: list[float] = []
    blocks = batch = 0
    engine.begin()
    start = time.perf_counter()
    try:
        with short_collections():
            while waiting or engine.has_work:
                now = time.perf_counter() - start
                while waiting and waiting[0][0] <= now:
                    engine.add([waiting.popleft()[1]])
                if not engine.has_work:
                    time.sleep(waiting[0][0] - now)
                    continue
                for completion in engine.step():
                    took = time.perf_counter() - start - arrived[completion.request.key]
                    normalised.append(took / len(completion.token_ids))
                blocks = max(blocks, engine.stats.blocks_used)
                batch = max(batch, engine.stats.running)
        seconds = time.perf_counter() - start
    finally:
        engine.end()
    return Replay(normalised, seconds, blocks * block_bytes, batch)
