"""Steps that run out of memory, before they began or when all was computed: nothing is lost."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from sharegen.engine.core.batch import FIXED_CHUNK_ON_CPU
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.execute.graphs import StepGraphs
from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.schedule import scheduler
from sharegen.errors import CapacityError
from tests.engine.jobs import (
    CheckedEngine,
    assert_empty,
    forest,
    judge,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
    run,
)
from tests.engine.random_jobs import RandomJob, jobs
from tests.engine.schedule.test_scheduler import assert_spelled
from tests.engine.spelling import SpellingRunner
from tests.engine.tiny_models import tiny_config

PARAMS = SamplingParams(temperature=1.1, max_tokens=25, stop_token_ids=[5, 50, 95])
WIDE = 4096  # tokens of a prefill batch: can be halved four times

pytestmark = pytest.mark.filterwarnings("ignore:out of memory")


def starve(engine: Engine, fails: Callable[[str], bool]) -> None:
    """Let each step fail of which `fails(method)` says so: in turn before it runs and after."""
    failed = 0
    for method in ("prefill", "decode"):
        real = getattr(engine.runner, method)

        def step(batch: object, method: str = method, real: Callable = real) -> object:
            nonlocal failed
            if not fails(method):
                return real(batch)
            failed += 1
            if failed % 2:
                real(batch)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

        setattr(engine.runner, method, step)


def calls(numbers: set[int]) -> Callable[[str], bool]:
    """The so-manieth steps, failed ones counted."""
    counter = iter(range(1 << 30))
    return lambda method: next(counter) in numbers


def job() -> list[Request]:
    """Greedy, sampled, penalised and with the prompt's log-probabilities, in one batch."""
    ways = [
        PARAMS,
        replace(PARAMS, temperature=0.0),
        replace(PARAMS, repetition_penalty=1.3, top_p=0.9, max_tokens=40),
        replace(PARAMS, logprobs=2, prompt_logprobs=1, min_tokens=4),
    ]
    return [Request(i, p, ways[i % len(ways)], range(4)) for i, p in enumerate(forest())]


def said(completion: Completion) -> tuple[object, ...]:
    return (completion.token_ids, completion.cumulative_logprob, completion.finish_reason,
            completion.logprobs, completion.prompt_logprobs)  # fmt: skip


def results(engine: CheckedEngine, requests: list[Request]) -> dict[tuple[int, int], object]:
    return {key: said(c) for key, c in run(engine, requests).completions.items()}


@cache
def undisturbed(name: str) -> dict[tuple[int, int], object]:
    return results(make_engine(loaded(name), prefill_tokens=WIDE), job())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lag", "failing"),
    [("llama", 0, {0}), ("llama", 1, {1}), ("gemma2", 1, {0, 1, 2}), ("gemma2", 0, {3}),
     ("llama", 1, {4, 5, 6}), ("llama", 0, {2, 9, 21, 22, 30}), ("gemma2", 1, {2, 9, 21, 22, 30})],
)  # fmt: skip
@pytest.mark.turn(8)
def test_every_token_is_that_of_the_undisturbed_run(name: str, lag: int, failing: set[int]) -> None:
    """Bit for bit, with log-probabilities; integrity is checked after every step."""
    engine = make_engine(loaded(name), max_sequences=300, prefill_tokens=WIDE)
    engine._lag = lag
    starve(engine, calls(failing))
    assert results(engine, job()) == undisturbed(name)
    assert engine.stats.shrinks == len(failing)
    assert_empty(engine)


@cache
def with_long_context(name: str) -> LoadedModel:
    """A model that reads prompts of several chunks."""
    config = tiny_config(name)
    config.max_position_embeddings = 4 * FIXED_CHUNK_ON_CPU
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return load_model(model.float().eval())


@cache
def long_results(name: str, **config: int) -> dict[tuple[int, int], object]:
    """In the deterministic mode, where chunks are cut at places that no step changes.

    config: of the engine; failing: so many prefill steps find no memory.
    """
    rng = random.Random(0)
    heads = [random_tokens(count, rng) for count in (40, 530)]
    prompts = [heads[i % 2] + random_tokens(count, rng) for i, count in enumerate((3, 290, 410, 9))]
    failing = config.pop("failing", 0)
    engine = make_engine(
        with_long_context(name), blocks=1200, deterministic=True, **{"prefill_tokens": 512} | config
    )
    left = iter([True] * failing)
    starve(engine, lambda method: method == "prefill" and next(left, False))
    found = results(engine, requests_of(prompts, replace(PARAMS, prompt_logprobs=1), samples=2))
    assert engine.stats.shrinks == failing
    return found


@pytest.mark.slow
@pytest.mark.turn(4)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
@pytest.mark.parametrize(
    "config",
    [{"failing": 1}, {"failing": 1, "prefill_tokens": 2000}, {"failing": 3, "prefill_tokens": 1000},
     {"prefill_tokens": 24, "max_sequences": 3}],
)  # fmt: skip
def test_smaller_batches_have_the_same_bits(name: str, config: dict[str, int]) -> None:
    """Of prompts that are longer than a chunk."""
    assert long_results(name, **config) == long_results(name)


@pytest.mark.slow
def test_scarce_blocks_and_steps_that_fail_at_random() -> None:
    """Preemption for want of blocks and for want of memory, together."""
    for seed in range(2):
        rng = random.Random(seed)
        engine = make_engine(loaded("llama"), prefill_tokens=WIDE, blocks=60)
        engine._lag = seed % 2
        left = {"prefill": 4, "decode": 3}

        def fails(method: str, left: dict[str, int] = left, rng: random.Random = rng) -> bool:
            failing = left[method] > 0 and rng.random() < 0.2
            left[method] -= failing
            return failing

        starve(engine, fails)
        assert results(engine, job()) == undisturbed("llama")
        assert engine.stats.shrinks > 0 and engine.stats.preemptions > 0


@pytest.fixture
def down_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LEAST_CHUNK", 1)
    monkeypatch.setattr(scheduler, "LEAST_SEQUENCES", 1)


def check_random_job(job: RandomJob, rng: random.Random) -> None:
    """Whatever is taken back, every row of every later batch reads its own text and no other."""
    engine = job.engine(loaded("llama"))
    engine.runner = SpellingRunner(engine, job.requests)  # type: ignore[assignment]

    def fails(method: str) -> bool:
        least = engine.scheduler.max_sequences == 1
        least &= method == "decode" or engine.scheduler.prefill.chunk_tokens == 1
        return not least and rng.random() < 0.2

    starve(engine, fails)
    for completion in run(engine, job.requests).completions.values():
        assert_spelled(completion)


_checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=_checks)
@given(jobs(), st.randoms(use_true_random=False))
def test_random_jobs_read_their_own_context(
    down_to_one: None, job: RandomJob, rng: random.Random
) -> None:
    check_random_job(job, rng)


@pytest.mark.slow
@pytest.mark.turn(10)
@settings(max_examples=60, deadline=None, suppress_health_check=_checks)
@given(jobs(), st.randoms(use_true_random=False))
def test_many_more_random_jobs(down_to_one: None, job: RandomJob, rng: random.Random) -> None:
    check_random_job(job, rng)


@pytest.mark.slow
def test_nodes_that_were_cut_at_other_places_are_exact(down_to_one: None) -> None:
    """Chunks go on from where the last one ended, at the places of the smaller ones."""
    requests = requests_of(forest(), replace(PARAMS, ignore_eos=True), samples=2)
    engine = make_engine(loaded("mistral"), prefill_tokens=13)
    starve(engine, calls({1, 3, 6}))
    for completion in run(engine, requests).completions.values():
        judge(completion, "mistral")
    assert engine.scheduler.prefill.chunk_tokens < 13


def test_forks_of_samples_that_had_to_leave(down_to_one: None) -> None:
    """A fork of a sample whose row was taken computes its text anew, and is the reference's."""
    engine = make_engine(loaded("llama"), max_sequences=12)
    failing = False
    starve(engine, lambda method: failing and method == "decode")
    params = replace(PARAMS, stop_token_ids=[], ignore_eos=True)
    done = 0
    stream = engine.generate([Request(0, forest()[0], replace(params, max_tokens=6), range(3)),
                              Request(1, forest()[2], params, range(3), keep=True)])  # fmt: skip
    for completion in stream:
        if done == 0:
            failing = True
            assert engine.step() == []
            failing = False
            assert engine.scheduler.num_running == 0
            for sample in range(3):
                engine.fork((1, sample), replace(params, max_tokens=5, n=2))
        judge(completion, "llama")
        done += 1
    assert done == 6 + 6 and engine.stats.shrinks == 1


def exhausted(engine: Engine, requests: list[Request]) -> str:
    with pytest.raises(CapacityError) as raised:
        list(engine.generate(requests))
    return str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["prefill", "decode"])
@pytest.mark.turn(4)
def test_memory_that_never_suffices_is_one_line_that_says_what_to_do(method: str) -> None:
    engine = make_engine(loaded("llama"), max_sequences=33, prefill_tokens=1000)
    always = True
    starve(engine, lambda name: always and name == method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        message = exhausted(engine, job())
    assert message.startswith("out of memory even with 8 sequences") and "\n" not in message
    assert "a smaller KV cache leaves more" in message
    chunks = ["500", "256"] if method == "prefill" else []
    sizes = [*(f"prompts are computed {size} tokens" for size in chunks),
             *(f"{size} sequences decode" for size in (16, 8))]  # fmt: skip
    texts = [str(w.message) for w in caught]
    assert len(texts) == len(sizes) == engine.stats.shrinks
    for text, size in zip(texts, sizes, strict=True):
        assert text.startswith(f"out of memory: from now on {size}"), text
    assert_empty(engine)
    always = False  # what another job of the same engine finds
    assert results(engine, job()) == undisturbed("llama")


def test_what_finished_meanwhile_is_not_lost_to_the_error() -> None:
    """The last step in flight ends a sample; the next one fails, and cannot be made smaller."""
    params = replace(PARAMS, stop_token_ids=[], ignore_eos=True)
    requests = [
        Request(0, forest()[0], replace(params, max_tokens=3), range(1)),
        Request(1, forest()[0], replace(params, max_tokens=9), range(1)),
    ]
    engine = make_engine(loaded("llama"), max_sequences=4)
    engine._lag = 1
    steps = 0

    def fails(method: str) -> bool:
        nonlocal steps
        steps += method == "decode"
        return method == "decode" and steps > 2

    starve(engine, fails)
    finished = []
    with pytest.raises(CapacityError):
        finished += [c.request.key for c in _each(engine.generate(requests), finished)]
    assert finished == [0]


def _each(stream: Iterator[Completion], keys: list[int]) -> Iterator[Completion]:
    for completion in stream:
        keys.append(completion.request.key)
        yield completion


def test_other_errors_are_not_taken_for_it() -> None:
    engine = make_engine(loaded("llama"))
    engine.runner.prefill = lambda batch: (_ for _ in ()).throw(RuntimeError("a shape is wrong"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        list(engine.generate(job()))
    assert_empty(engine)


# -- what is out of memory ----------------------------------------------------------------------


def test_errors_that_say_that_memory_ran_out() -> None:
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
    ):
        assert is_out_of_memory(error)
    for other in (RuntimeError("operation not permitted"), ValueError("out of memory"), None):
        assert not is_out_of_memory(other)


def test_an_error_on_the_way_out_of_a_capture_hides_nothing() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert is_out_of_memory(error)


def test_a_capture_without_memory_is_no_model_that_cannot_be_captured() -> None:
    graphs = StepGraphs()

    def no_memory(rows: int) -> tuple[torch.Tensor, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            graphs.run(8, "kind", 0, no_memory, [])
    assert not graphs._refused

    def data_dependent(rows: int) -> tuple[torch.Tensor, ...]:
        if not graphs._refused:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (torch.ones(1),)

    with pytest.warns(UserWarning, match="decoding without CUDA graphs: operation not permitted"):
        [drawn] = graphs.run(8, "kind", 0, data_dependent, [])
    assert graphs._refused and drawn.item() == 1
    graphs.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is told once
        graphs.run(8, "kind", 1, data_dependent, [])
