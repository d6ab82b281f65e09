"""Jobs of all kinds on one engine of two ranks, which a process has one of at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel import tensor_parallel_workers
from sharegen.engine.schedule.swapping import SwapCost
from tests.engine.jobs import hope_for_the_best, swap_always
from tests.engine.parallel import forked
from tests.engine.parallel.test_ranks import CONFIG, Results, alone, job, led, results
from tests.tiny import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.turn(1)]  # what they cover, nothing else does


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=256)


WAYS = {
    "stop strings": SamplingParams(temperature=1.2, max_tokens=30, stop=["a", "7"], logprobs=2),
    "penalties": SamplingParams(
        max_tokens=20, frequency_penalty=0.4, presence_penalty=0.2, bad_words=["Tom"], top_k=40
    ),
    "prompt log-probabilities": SamplingParams(max_tokens=4, prompt_logprobs=1, min_p=0.02),
}


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[Engine]:
    """Two ranks for many jobs, with so little memory that samples are preempted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_parallel_workers, "EngineProcess", forked.Rank)
        engine = led(folder, _tight(folder, 2))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def one(folder: Path) -> Engine:
    return alone(folder, _tight(folder, 1))


def _tight(folder: Path, ranks: int) -> EngineConfig:
    """Forty blocks, whatever a block is on a rank; several ranks have host memory beside them."""
    size = load_model(folder, device="cpu", weights=False).kv_bytes_per_token * 4 // ranks
    swap_space = 0.01 if ranks > 1 else 0
    return replace(CONFIG, kv_cache_memory=40 * size, swap_space=swap_space)


@pytest.mark.parametrize("way", WAYS)
def test_ways_of_drawing(way: str, two: Engine, one: Engine) -> None:
    requests = job(WAYS[way])
    assert results(list(two.generate(requests))) == results(list(one.generate(requests)))


def test_preemption_and_resume(two: Engine, one: Engine) -> None:
    """Samples that make room go to the host memory of all ranks, or replay what they had; those
    that are on record are not drawn."""
    for engine in (one, two):
        hope_for_the_best(engine)
    requests = job(SamplingParams(max_tokens=20, ignore_eos=True), prompts=5)
    swap_always(two)
    whole = results(list(one.generate(requests)))
    swaps, replayed = two.stats.swaps, two.stats.tokens_replayed
    assert results(list(two.generate(requests))) == whole
    assert one.stats.swaps == 0 and two.stats.swaps > swaps
    two.scheduler.swapping.cost = SwapCost(fixed=1e9)
    assert results(list(two.generate(requests))) == whole
    assert two.stats.tokens_replayed > replayed
    some = [replace(request, samples=[1, 3]) for request in requests]
    left = {key: result for key, result in whole.items() if key[1] in (1, 3)}
    assert results(list(two.generate(some))) == left


def test_forks_cancellations_and_a_stream_closed_early(two: Engine, one: Engine) -> None:
    def drawn(engine: Engine) -> tuple[Results, list[int]]:
        found, keys = [], []
        requests = [replace(r, keep=True) for r in job(SamplingParams(max_tokens=9), prompts=3)]
        for completion in engine.generate(requests):
            found.append(completion)
            if completion.request.key == 0 and completion.sample < 2:
                keys.append(engine.fork(completion, SamplingParams(n=2, max_tokens=5), tokens=3))
                engine.cancel(2, [3])
        return results(found), sorted(keys)

    for engine in (one, two):
        stream = engine.generate(job(WAYS["penalties"]))
        next(stream)
        stream.close()
    assert drawn(two) == drawn(one)


def test_ctrl_c_waits_for_the_step(two: Engine, one: Engine) -> None:
    requests = job(SamplingParams(max_tokens=9))
    stream = two.generate(requests)
    next(stream)
    step = two._step

    def interrupted() -> list[Completion]:
        signal.raise_signal(signal.SIGINT)
        return step()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(two, "_step", interrupted)
        list(stream)
    assert results(list(two.generate(requests))) == results(list(one.generate(requests)))
