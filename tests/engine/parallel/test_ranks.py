"""One engine on several ranks, each a process that has a part of the model: the samples of one."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharegen import LLM
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.agreement import VARIABLE, RanksDiffer
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel import tensor_parallel_workers
from sharegen.engine.parallel.bounds import VARIABLE as TIMEOUT
from sharegen.engine.parallel.driver import Driver, WorkersError
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.rank_zero import engine_of, engine_of_ranks
from sharegen.engine.parallel.tensor_parallel_workers import RanksError
from sharegen.errors import CapacityError, ModelError, UsageError
from tests.engine.jobs import GREEDY, forest, loaded, make_engine, requests_of, run
from tests.engine.parallel import forked
from tests.engine.tiny_models import make_tiny
from tests.tiny import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.turn(1)]  # what they cover, nothing else does

CONFIG = EngineConfig(max_sequences=16, kv_cache_memory=1 << 20, block_size=4)
DRAWN = SamplingParams(
    temperature=1.1, top_p=0.9, max_tokens=12, repetition_penalty=1.2, stop_token_ids=[5, 50, 95]
)
ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "mixtral", "qwen3_moe",
    "gpt_oss", "olmo2", "deepseek_v3", "granite", "cohere2",
)  # fmt: skip
REASON = "rank 1 is gone: it was killed, perhaps for want of memory"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked from a process that has imported everything."""
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.Rank)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=256)


def led(folder: Path, config: EngineConfig = CONFIG, ranks: int = 2) -> Engine:
    return engine_of(
        Setting(str(folder), load_tokenizer(folder), config, device="cpu", ranks=ranks)
    )


def alone(folder: Path, config: EngineConfig = CONFIG) -> Engine:
    return Engine(load_model(folder, device="cpu"), load_tokenizer(folder), config)


Results = dict[tuple[int, int], tuple[Any, ...]]


def results(completions: Sequence[Completion]) -> Results:
    """By key: tokens, text, why they ended, and what was said of the first of them."""
    found: Results = {}
    for c in completions:
        top = sorted(c.logprobs[0].top) if c.logprobs else None
        found[c.request.key, c.sample] = (c.token_ids, c.text, c.finish_reason, c.stop_reason, top)
    assert len(found) == len(completions), "a sample was drawn twice"
    return found


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*((name, 2) for name in ARCHITECTURES), ("llama", 4), ("gpt_oss", 4), ("deepseek_v3", 4)],
)
@pytest.mark.turn(2)
def test_the_samples_of_one(name: str, ranks: int, tmp_path: Path) -> None:
    """Greedy and drawn, with prompts that share at four levels."""
    make_tiny(name).save_pretrained(tmp_path)
    one = make_engine(loaded(name))
    engine = engine_of_ranks(partial(load_model, str(tmp_path)), ["cpu"] * ranks, None, one.config)
    try:
        assert engine.model.kv_bytes_per_token < one.model.kv_bytes_per_token
        prompts = forest()[:8]
        for requests in (requests_of(prompts, GREEDY), requests_of(prompts, DRAWN, samples=3)):
            assert run(engine, requests).tokens == run(one, requests).tokens
    finally:
        engine.close()


@pytest.mark.turn(2)
def test_bits_of_four_ranks_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """In how many rows a sample is drawn, and in which of them, changes no log-probability."""
    make_tiny("llama").save_pretrained(tmp_path)
    requests = job(replace(DRAWN, logprobs=0), samples=3)
    found = []
    for rows, asked in ((16, requests), (3, requests[::-1])):
        config = replace(CONFIG, max_sequences=rows, deterministic=True)
        load = partial(load_model, str(tmp_path))
        engine = engine_of_ranks(load, ["cpu"] * 4, None, config)
        try:
            drawn = engine.generate(asked)
            found.append(
                {(c.request.key, c.sample): (c.token_ids, c.cumulative_logprob) for c in drawn}
            )
        finally:
            engine.close()
    assert found[0] == found[1]


def job(params: SamplingParams, samples: int = 4, prompts: int = 10) -> list[Request]:
    stem = list(range(20, 37))
    return [Request(i, [*stem, 40 + i % 3, 50 + i], params, range(samples)) for i in range(prompts)]


def test_masks_of_structured_outputs_reach_every_rank(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank would draw what its grammar bars, where it had no mask."""
    monkeypatch.setenv(VARIABLE, "1")
    params = SamplingParams(n=3, max_tokens=30, structured_outputs={"regex": "[a-c]{4,9}"})
    requests = [*job(params, samples=3, prompts=3), *job(DRAWN, samples=2, prompts=9)[3:]]
    one, engine = alone(folder), led(folder)
    try:
        assert results(list(engine.generate(requests))) == results(list(one.generate(requests)))
    finally:
        engine.close()


# -- ranks that are gone ------------------------------------------------------------------------


def assert_gone(pids: Sequence[int]) -> None:
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_rank_that_is_killed_ends_the_engine(folder: Path) -> None:
    engine = led(folder, ranks=4)
    pids = engine._other_ranks.pids  # type: ignore[union-attr]
    stream = engine.generate(job(SamplingParams(max_tokens=100, ignore_eos=True)))
    next(stream)
    with pytest.raises(UsageError, match="one of several ranks already"):
        led(folder)
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(RanksError, match=REASON):
        list(stream)
    assert time.monotonic() - began < 60
    assert_gone(pids)
    with pytest.raises(UsageError, match="closed"):
        next(engine.generate(job(SamplingParams())))
    with LLM(folder, device="cpu", kv_cache_memory=1 << 20, tensor_parallel_size=2) as llm:
        assert len(llm.generate({"prompt_token_ids": [5, 6]})) == 1


def test_a_rank_that_is_stopped_ends_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TIMEOUT, "4")
    engine = led(folder)
    [pid] = engine._other_ranks.pids  # type: ignore[union-attr]
    stream = engine.generate(job(SamplingParams(max_tokens=100, ignore_eos=True)))
    next(stream)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RanksError, match="rank 1 is gone: it gave no sign of life for 4 s"):
        list(stream)
    assert_gone([pid])


def test_nothing_is_left_in_the_temporary_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at a normal end nor at an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = led(folder)
    list(engine.generate(job(SamplingParams(), prompts=1)))
    assert sys.platform != "linux" or not [*tmp_path.iterdir()]
    engine.close()
    with pytest.raises(ModelError):
        led(folder, ranks=3)
    assert not [*tmp_path.iterdir()]


def test_a_rank_that_is_killed_on_its_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(forked.Rank):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", Killed)
    with pytest.raises(RanksError, match=REASON):
        led(folder)


def test_no_memory_on_one_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.StarvingRank)
    engine = led(folder)
    with pytest.raises(CapacityError, match=r"rank 1 ran out of memory.*--max-sequences"):
        list(engine.generate(job(SamplingParams())))
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.Rank)
    engine = led(folder)
    pids = engine._other_ranks.pids  # type: ignore[union-attr]
    monkeypatch.setattr(engine.runner, "run", _no_memory)
    with pytest.raises(CapacityError, match=r"rank 0 ran out of memory.*--max-sequences"):
        list(engine.generate(job(SamplingParams())))
    assert_gone(pids)


def test_a_rank_that_is_gone_while_the_model_is_tried_is_no_fault_of_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.DyingRank)
    with pytest.raises(RanksError, match=REASON):
        led(folder)


def test_a_step_that_one_rank_has_no_memory_for_is_taken_back_by_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on with smaller steps, and the samples are the same."""
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.RankInWant)
    config = replace(CONFIG, max_sequences=64, prefill_tokens=512)
    requests = job(SamplingParams(logprobs=1))
    expected = results(list(alone(folder, config).generate(requests)))
    engine = led(folder, config)
    with pytest.warns(UserWarning, match="out of memory: from now on"):
        assert results(list(engine.generate(requests))) == expected
    assert engine.stats.shrinks == 2
    engine.close()


def _no_memory(batch: object) -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_a_rank_that_goes_astray_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    engine = led(folder)
    assert len(list(engine.generate(job(SamplingParams())))) == 40
    engine.close()
    monkeypatch.setattr(tensor_parallel_workers, "EngineProcess", forked.RankAstray)
    engine = led(folder)
    with pytest.raises(RanksDiffer, match=r"step 2: tokens differs: rank 0 has \w+, rank 1 \w+"):
        list(engine.generate(job(SamplingParams())))


def test_what_cannot_be_cut_is_refused_before_weights_are_read(folder: Path) -> None:
    with pytest.raises(ModelError, match="cannot be cut into 3 shards: it has 4 attention heads"):
        LLM(folder, device="cpu", tensor_parallel_size=3)
    with pytest.raises(ModelError, match="an adapter cannot be cut"):
        LLM(folder, device="cpu", tensor_parallel_size=2, adapter=str(folder))


def test_a_worker_ends_with_its_rank_and_a_rank_with_its_worker(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes on with the other worker; the last one's end has its reason."""
    setting = Setting(str(folder), load_tokenizer(folder), CONFIG, device="cpu", threads=1, ranks=2)
    requests = job(SamplingParams(max_tokens=40, ignore_eos=True), prompts=16)
    engine = led(folder)
    expected = results(list(engine.generate(requests)))
    engine.close()
    driver = Driver([setting, setting], forked.forked())
    driver.gather()  # or the rank to be killed may not be there yet
    found = []
    with pytest.warns(UserWarning, match="is gone: rank 1 is gone: it was killed"):
        for completion in driver.generate(requests):
            found.append(completion)
            if len(found) == 1:
                [rank] = psutil.Process(driver.pids[0]).children()
                rank.kill()
    assert results(found) == expected
    [rank] = psutil.Process(driver.pids[0]).children()
    stream = driver.generate(requests)
    next(stream)
    os.kill(driver.pids[0], signal.SIGKILL)
    with pytest.raises(WorkersError, match="it was killed"):
        list(stream)
    assert psutil.wait_procs([rank], timeout=60)[1] == []
    driver.close()
