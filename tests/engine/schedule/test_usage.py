"""What of the KV cache is in use, and what is wasted: the counts that are kept, beside a count of
every place of every block."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from sharegen.engine.cache.stored_kv import NodeKV
from sharegen.engine.core.beam_search import BeamSearchParams
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.usage import CacheUsage, Meter
from tests.engine.jobs import (
    CheckedEngine,
    engine_config,
    forest,
    hope_for_the_best,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
    run,
)
from tests.engine.random_jobs import RandomJob, jobs
from tests.engine.spelling import SpellingRunner

PARAMS = SamplingParams(temperature=1.0, max_tokens=13, ignore_eos=True)
PROMPT = random_tokens(30, random.Random(1))


class Counting(Meter):
    """Looks at every block of the engine whenever a step has been launched."""

    def __init__(self, engine: CheckedEngine) -> None:
        super().__init__()
        self.engine = engine
        self.written: dict[int, int] = {}  # places of a block that have had a token, while in use
        engine.observer.meter = self
        self.pool_free, engine.pool.free = engine.pool.free, self.free  # type: ignore[method-assign]

    def free(self, blocks: Any) -> None:
        self.pool_free(blocks)
        for block in map(int, blocks):
            if self.engine.pool._owners[block] == 0:
                self.written.pop(block, None)

    def note(self, usage: CacheUsage, decodes: bool) -> None:
        super().note(usage, decodes)
        assert usage == self.counted()

    def counted(self) -> CacheUsage:
        scheduler, pool = self.engine.scheduler, self.engine.pool
        size, blocks_per_full = pool.block_size, pool.blocks_per_full
        hopes: dict[int, int] = {}  # places of a block that have, or may yet have, a token
        written: dict[int, int] = {}
        used = ahead = internal = 0
        for node, kv in scheduler.cache.stored.items():
            if kv.users and kv.placed and kv.pool_blocks == blocks_per_full > 1:
                used += kv.computed * blocks_per_full
                ahead += (node.length - kv.computed) * blocks_per_full
                internal += len(kv.blocks) * size - node.length * blocks_per_full
            elif kv.users:
                self.fill(kv, kv.computed, node.length, written, hopes)
        for sequence in scheduler.rows.running():
            self.fill(sequence, sequence.fed, sequence.group.limit - 1, written, hopes)
        for sequence in scheduler.cache.kept:
            self.fill(sequence, sequence.fed, sequence.fed, written, hopes)
        self.written |= written
        used += sum(written.values())
        ahead += sum(hopes[block] - written[block] for block in written)
        internal += sum(size - hopes[block] for block in written)
        free = [
            pool._owners[i : i + blocks_per_full] == 0
            for i in range(0, pool.num_blocks, blocks_per_full)
        ]
        external = sum(int(full_block.sum()) for full_block in free if not full_block.all()) * size
        return CacheUsage(used, ahead, internal, external)

    def fill(
        self, owner: Any, now: int, last: int, written: dict[int, int], hopes: dict[int, int]
    ) -> None:
        """One owner of some blocks has so many tokens in them, and will have so many at most."""
        size = self.engine.pool.block_size
        for index, block in enumerate(map(int, owner.blocks)):
            has, will = (min(size, max(0, count - index * size)) for count in (now, last))
            # A fork has less of a block than the sample that it came from had written.
            before = self.written.get(block, 0) if isinstance(owner, NodeKV) else 0
            written[block] = max(written.get(block, 0), has, before)
            hopes[block] = max(hopes.get(block, 0), will, written[block])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, phases=set(Phase) - {Phase.shrink})
@given(jobs())
def test_of_random_jobs(job: RandomJob) -> None:
    engine = job.engine(loaded("llama"))
    engine.runner = SpellingRunner(engine, job.requests)  # type: ignore[assignment]
    Counting(engine)
    run(engine, job.requests)


def test_of_forks() -> None:
    """Of samples that run and of some that have ended, and of forks of these."""
    engine = make_engine(loaded("llama"), blocks=60)
    engine._lag = 1
    meter = Counting(engine)
    short = replace(PARAMS, max_tokens=6)
    requests = [
        replace(r, keep=True)
        for r in [Request(0, PROMPT, PARAMS, range(2)), Request(1, PROMPT[:20], short, range(2))]
    ]
    forks = 0
    for completion in engine.generate(requests):
        if forks < 6:
            forks += 1
            engine.fork(completion, replace(short, n=2))
            running = next(iter(engine.running()), None)
            if running is not None and running[0] < 2:
                engine.fork(running, replace(short, max_tokens=3), tokens=3)
    assert forks == 6 and meter.peak.internal > 0


def test_of_narrow_blocks() -> None:
    """A token of what several read takes the places of four of one sample's own, in float32."""
    model = loaded("llama")
    config = engine_config(model, kv_cache_dtype="fp8", blocks=60)
    engine = CheckedEngine(model, None, config)
    meter = Counting(engine)
    ways = [replace(PARAMS, n=3), PARAMS]
    run(engine, [Request(i, p, ways[i % 2], range(ways[i % 2].n)) for i, p in enumerate(forest())])
    assert engine.pool.blocks_per_full == 4 and meter.peak.external + meter.in_steps["external"] > 0


def test_of_beams() -> None:
    engine = make_engine(loaded("llama"), blocks=70)
    params = BeamSearchParams(beam_width=4, max_tokens=18, ignore_eos=True)
    Counting(engine)
    run(engine, [Request(i, p, params.of_rows, range(4), beam=params) for i, p in
                 enumerate((PROMPT, PROMPT[:7]))])  # fmt: skip


@pytest.mark.slow
def test_of_a_window() -> None:
    """What lies behind it stays in its block: it counts as used."""
    engine = make_engine(loaded("mistral"), blocks=100)
    Counting(engine)
    run(engine, requests_of([PROMPT, PROMPT[:9]], PARAMS, samples=2))


def test_of_preempted_samples() -> None:
    engine = make_engine(loaded("llama"), blocks=20)
    hope_for_the_best(engine)
    engine.runner = SpellingRunner(engine, requests := requests_of([PROMPT], PARAMS, 6))  # type: ignore[assignment]
    Counting(engine)
    run(engine, requests)
    assert engine.stats.preemptions > 0


def test_what_the_counts_say() -> None:
    """30 prompt tokens in 8 blocks of 4; 3 samples feed 12 of 13 tokens to 3 blocks each."""
    engine = make_engine(loaded("llama"))
    stats = run(engine, requests_of([PROMPT], PARAMS, 3)).stats
    place = engine.observer.place_bytes
    assert stats.peak_kv == {
        "reserved": (8 + 9) * 4 * place, "used": (30 + 36) * place, "ahead": 0,
        "internal": 2 * place, "external": 0,
    }  # fmt: skip
    steps = stats.kv_in_steps
    assert stats.decode_steps == 12
    assert steps["used"] == sum(30 + 3 * fed for fed in range(1, 13))
    assert steps["reserved"] == sum(32 + 3 * 4 * -(-fed // 4) for fed in range(1, 13))
    assert steps["internal"] == 2 * 12 and steps["external"] == 0
    assert steps["ahead"] == steps["reserved"] - steps["used"] - steps["internal"]
    later = run(engine, requests_of([PROMPT[:9]], PARAMS)).stats  # less than before
    assert later.peak_kv["used"] == 66 * place
