"""Several engines as one, each a real process with a tiny model from a folder."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoModelForCausalLM

from sharegen import LLM
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import BeamSearchParams, Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel import driver as driver_module
from sharegen.engine.parallel.bounds import VARIABLE, Bounds
from sharegen.engine.parallel.driver import Driver, WorkersError
from sharegen.engine.parallel.launch import EngineProcess, Processes
from sharegen.engine.parallel.liveness import Liveness
from sharegen.engine.parallel.messages import Check, Checked, Setting, Work
from sharegen.errors import ModelError, RequestError, UsageError
from sharegen.job.cut import copied_by_workers
from sharegen.outputs import CompletionOutput
from tests.engine.parallel.forked import Forked, Hanging, Starved, forked
from tests.tiny import large_tokenizer, save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.turn(1)]  # what they cover, nothing else does

PARAMS = SamplingParams(temperature=1.1, max_tokens=24, stop=["7"])
CONFIG = EngineConfig(max_sequences=16, kv_cache_memory=8 << 20, block_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), context=256)


@pytest.fixture(scope="module")
def setting(folder: Path) -> Setting:
    return Setting(str(folder), large_tokenizer(), CONFIG, device="cpu", threads=1)


@pytest.fixture(scope="module")
def two(setting: Setting) -> Iterator[Driver]:
    driver = Driver([setting, setting], forked())
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def no_history(request: pytest.FixtureRequest) -> None:
    """What earlier tests asked decides where prompts are split: one engine has not heard it."""
    if "two" in request.fixturenames:
        request.getfixturevalue("two").reset_prefix_cache()


def job(count: int = 30, samples: int = 4) -> list[Request]:
    """Prompts below one stem, with accidental branches of two blocks between neighbours."""
    rng = random.Random(3)
    stem = [rng.randrange(3, 300) for _ in range(21)]
    accidents = [[rng.randrange(3, 300) for _ in range(9)] for _ in range(1 + count // 3)]
    return [
        Request(
            i,
            [*stem, *rng.choice(accidents), *(rng.randrange(3, 300) for _ in range(5))],
            PARAMS,
            range(samples),
        )
        for i in range(count)
    ]


def results(completions: list[Completion]) -> dict[tuple[int, int], tuple[object, ...]]:
    """By key: tokens, text, and the very bits of the log-probability."""
    found = {
        (c.request.key, c.sample): (c.token_ids, c.text, c.cumulative_logprob) for c in completions
    }
    assert len(found) == len(completions), "a sample was drawn twice"
    return found


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[tuple[int, int], tuple[object, ...]]:
    engine = Engine(load_model(folder, device="cpu"), load_tokenizer(folder), CONFIG)
    found = results(list(engine.generate(job())))
    engine.close()
    return found


def test_the_same_samples_to_the_bit(two: Driver, alone: object) -> None:
    assert results(list(two.generate(job()))) == alone
    assert two.stats.completions == len(job()) * 4
    assert two.stats.prompt_tokens_asked == sum(4 * len(r.prompt_token_ids) for r in job())


def test_a_node_is_computed_once_a_worker(two: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What several need costs a computation each; a few tokens more where the last are dealt."""
    told: dict[EngineProcess, dict[int, Request]] = {}
    send = EngineProcess.send

    def heard(self: EngineProcess, message: object) -> None:
        if isinstance(message, Work):
            told.setdefault(self, {}).update((r.key, r) for r in message.requests)
        send(self, message)

    monkeypatch.setattr(EngineProcess, "send", heard)
    before = two.stats.prompt_tokens_computed
    requests = job(60)
    assert len(list(two.generate(requests))) == 60 * 4
    computed = two.stats.prompt_tokens_computed - before
    whole = tree_of(requests)
    parts = [tree_of(list(part.values())) for part in told.values()]
    assert len(parts) == 2 and max(len(node.path()) for node in whole.nodes()) == 3
    once_each = sum(tree.num_tokens for tree in parts)
    assert once_each <= computed <= once_each + 3 * 9
    about = copied_by_workers(whole, 2)
    assert about > 0 and abs(computed - whole.num_tokens - about) <= 2 * 14


def tree_of(requests: list[Request]) -> PrefixTree:
    splits = [request.splits for request in requests if request.splits]
    prompts = [request.prompt_token_ids for request in requests]
    return PrefixTree.build(prompts, CONFIG.block_size, splits=splits or None)


def test_both_work(two: Driver) -> None:
    before = {pid: psutil.Process(pid).cpu_times().user for pid in two.pids}
    list(two.generate(job(40)))
    assert all(psutil.Process(pid).cpu_times().user > before[pid] for pid in two.pids)


def test_requests_are_whole_again(two: Driver) -> None:
    request = job(1, samples=9)[0]
    found = list(two.generate([request]))
    assert {c.sample for c in found} == set(range(9))
    assert all(c.request.prompt_token_ids == request.prompt_token_ids for c in found)


@pytest.mark.parametrize("count", [1, 3])
def test_the_beams_of_a_search_are_one_workers(two: Driver, folder: Path, count: int) -> None:
    """Also where there are fewer searches than workers."""
    beam = BeamSearchParams(beam_width=4, max_tokens=6)
    requests = [
        Request(r.key, r.prompt_token_ids, beam.of_rows, range(4), beam=beam) for r in job(count)
    ]
    engine = Engine(load_model(folder, device="cpu"), load_tokenizer(folder), CONFIG)
    found = {(c.request.key, c.sample): (c.token_ids, c.score) for c in engine.generate(requests)}
    engine.close()
    dealt = list(two.generate(requests))
    assert {(c.request.key, c.sample): (c.token_ids, c.score) for c in dealt} == found


def test_closed_early_and_used_again(two: Driver, alone: object) -> None:
    stream = two.generate(job(200))
    next(stream)
    stream.close()
    two.reset_prefix_cache()  # else the prompts are split where those of the stream were
    assert results(list(two.generate(job()))) == alone


def test_cancelled_samples_do_not_come_and_the_others_are_the_same(
    two: Driver, alone: dict[tuple[int, int], tuple[object, ...]]
) -> None:
    """A request is cancelled with its first sample; what a worker had finished may still come."""
    found: list[Completion] = []
    ended: set[tuple[int, int]] = set()
    for completion in two.generate([replace(request, required=1) for request in job()]):
        found.append(completion)
        key = completion.request.key
        assert len(completion.request.prompt_token_ids) == len(job()[key].prompt_token_ids)
        if key % 3 == 0:
            ended |= {(key, sample) for sample in two.cancel(key)}
        else:
            two.call(key, 4)
    drawn = results(found)
    assert all(alone[place] == result for place, result in drawn.items())
    assert set(alone) - ended <= set(drawn) and set(drawn) | ended == set(alone) and ended
    with pytest.raises(UsageError, match="nothing to cancel: no job runs"):
        two.cancel(0)


def test_a_request_that_cannot_run(two: Driver) -> None:
    good = job(1)[0]
    with pytest.raises(RequestError, match="empty"):
        two.check(replace(good, prompt_token_ids=[]))
    with pytest.raises(RequestError, match="context"):
        list(two.generate([good, replace(good, prompt_token_ids=[5] * 300)]))
    assert len(list(two.generate([good]))) == 4


def test_workers_that_are_killed_cost_nothing(setting: Setting, alone: object) -> None:
    """Early and late, one hired in between; the last one's death ends the job."""
    driver = Driver([setting, setting], forked())
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for completion in driver.generate(job()):
            found.append(completion)
            if len(found) == 1:
                os.kill(driver.pids[0], signal.SIGKILL)
                driver.start_worker(setting)
            if len(found) == 100:
                os.kill(driver.pids[0], signal.SIGKILL)
    assert results(found) == alone
    assert len(driver.pids) == 1
    gone = "worker {} is gone: it was killed, perhaps for want of memory; the others go on"
    assert [str(w.message) for w in told] == [gone.format(number) for number in (1, 2)]
    stream = driver.generate(job())
    next(stream)
    os.kill(driver.pids[0], signal.SIGKILL)
    with pytest.raises(WorkersError, match="it was killed"):
        list(stream)
    driver.close()


def test_a_worker_that_is_stopped(
    setting: Setting, alone: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, the others draw what it had, and it says nothing more if it is woken up."""
    monkeypatch.setenv(VARIABLE, "4")
    driver = Driver([setting, setting], forked())
    driver.gather()
    stopped, found = driver.pids[0], []
    with pytest.warns(UserWarning) as told:
        for completion in driver.generate(job()):
            found.append(completion)
            if len(found) == 1:
                os.kill(stopped, signal.SIGSTOP)
    with contextlib.suppress(ProcessLookupError):  # it was ended, and nobody has waited for it
        os.kill(stopped, signal.SIGCONT)
    assert results(found) == alone and stopped not in driver.pids
    assert driver.stats.completions == len(found)
    assert [str(warning.message) for warning in told] == [
        "worker 1 is gone: it gave no sign of life for 4 s: it is stopped, or hangs; the others go "
        "on"
    ]
    assert results(list(driver.generate(job()))) == alone
    os.kill(driver.pids[0], signal.SIGSTOP)
    with pytest.raises(WorkersError, match="the last worker is gone: it gave no sign of life"):
        list(driver.generate(job()))
    driver.close()


def test_a_worker_that_is_stopped_before_it_reads(
    setting: Setting, alone: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its setting is longer than a socket holds: the driver does not wait for it to be read."""
    monkeypatch.setattr(driver_module, "Liveness", lambda: Liveness(Bounds(60, 15, 60)))

    class Stopped(Forked):
        def _begin(self, *arguments: Any) -> Any:
            begun = super()._begin(*arguments)
            os.kill(begun.pid, signal.SIGSTOP)
            return begun

    kinds = iter([Stopped, Forked])
    began = time.monotonic()
    driver = Driver([setting] * 2, Processes(lambda one: next(kinds)(one)))
    with pytest.warns(UserWarning, match="worker 1 is gone: it has not begun in 15 s"):
        driver.gather()
    assert time.monotonic() - began < 60
    assert results(list(driver.generate(job()))) == alone
    driver.close()


def test_a_worker_whose_step_does_not_end(
    setting: Setting, alone: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and says so; one that only loads is waited for."""
    monkeypatch.setattr(driver_module, "Liveness", lambda: Liveness(Bounds(60, 60, 3)))
    kinds = iter([Hanging, Forked])
    driver = Driver([setting] * 2, Processes(lambda one: next(kinds)(one)))
    driver.gather()
    with pytest.warns(UserWarning, match="is gone: one of its steps has not ended in 3 s"):
        assert results(list(driver.generate(job()))) == alone
    driver.close()


def test_a_worker_without_memory(setting: Setting, alone: object) -> None:
    """It ends with its reason in a line, and the job with it where it was the last."""
    kinds = iter([Starved, Forked])
    driver = Driver([setting] * 2, Processes(lambda one: next(kinds)(one)))
    with pytest.warns(UserWarning) as told:
        assert results(list(driver.generate(job()))) == alone
    driver.close()
    [line] = [str(warning.message) for warning in told]
    assert line.startswith("worker 1 is gone: ") and "can't allocate memory" in line
    assert line.count("\n") == 0
    last = Driver([setting], Processes(Starved))
    with pytest.raises(WorkersError, match="can't allocate memory") as raised:
        list(last.generate(job()))
    assert raised.value.exit_code == 1


def test_a_worker_with_another_model(setting: Setting, tmp_path: Path, alone: object) -> None:
    other = str(save_tiny_model(tmp_path / "other", context=256, seed=1))
    driver = Driver([setting], forked())
    driver.start_worker(replace(setting, model=other))
    with pytest.warns(UserWarning, match="worker 2 is gone: its model is another one") as told:
        driver.gather()
        assert results(list(driver.generate(job()))) == alone
    driver.close()
    assert len(told) == 1


def test_long_messages_both_ways_at_once(two: Driver) -> None:
    """Longer than a pipe holds: neither side waits for the other to read first."""
    [process, *_] = two._ready
    bad = [replace(job(1)[0], key=key, prompt_token_ids=[]) for key in range(6_000)]
    process.connection.send(Check(bad))
    process.connection.send(Check(bad))
    for _ in range(2):
        message = process.connection.recv()
        while not isinstance(message, Checked):
            message = process.connection.recv()
        assert all(isinstance(error, RequestError) for error in message.errors)


def test_a_model_that_cannot_be_loaded(setting: Setting, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        Driver([replace(setting, model=str(tmp_path / "nowhere"))], forked())


def test_through_the_llm(folder: Path) -> None:
    """Every call draws as one engine does, and what needs one in this process says so."""
    prompts = ["Question: Tom has 3 apples", "Question: A box holds 12 eggs"] * 3
    texts = []
    for workers in (1, 2):
        with LLM(folder, workers=workers, max_sequences=8, device="cpu") as llm:
            calls = [llm.generate(prompts, SamplingParams(n=3, max_tokens=9)) for _ in range(2)]
            texts.append([[s.text for output in call for s in output.outputs] for call in calls])
            streamed = llm.stream(iter(prompts), SamplingParams(n=2, max_tokens=5))
            texts[-1].append([str(c.text) for _, c in sorted(streamed, key=_place)])
            if workers == 2:
                for refused in (lambda: llm.fork((0, 0)), llm.running):
                    with pytest.raises(UsageError, match="leave out workers"):
                        refused()
                with pytest.raises(UsageError, match="leave out workers"):
                    next(llm.stream(prompts, keep=True))
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def _place(streamed: tuple[int, CompletionOutput]) -> tuple[int, int]:
    return streamed[0], streamed[1].index


@pytest.mark.parametrize("count", [0, -1, 4096])
def test_workers_that_cannot_be(folder: Path, count: int) -> None:
    with pytest.raises(UsageError, match="workers"):
        LLM(folder, workers=count, device="cpu")


def test_a_model_in_this_process_has_no_workers(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(UsageError, match="folder or hub id"):
        LLM(model, workers=2)
