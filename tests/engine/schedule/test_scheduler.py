"""The scheduler: every row reads its own context, every sample ends where it must, and the books
balance, whatever the sizes; with the host in step with the device or one step behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.errors import CapacityError, UsageError
from tests.engine.jobs import (
    CONTEXT,
    CheckedEngine,
    Ran,
    assert_empty,
    forest,
    loaded,
    make_engine,
    random_tokens,
    requests_of,
    run,
)
from tests.engine.random_jobs import RandomJob, jobs
from tests.engine.spelling import SpellingRunner, spelled

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


def spelling_engine(requests: list[Request], **config: int) -> CheckedEngine:
    engine = make_engine(loaded("llama"), **config)
    engine.runner = SpellingRunner(engine, requests)  # type: ignore[assignment]
    return engine


def computed_as(completion: Completion) -> int:
    """The sample whose tokens these are: a greedy request computes its first one alone."""
    request = completion.request
    return request.samples[0] if request.params.is_greedy else completion.sample


def assert_spelled(completion: Completion) -> None:
    """The tokens are the sample's own, up to where it must end."""
    request = completion.request
    prompt, params = tuple(request.prompt_token_ids), request.params
    room = CONTEXT - len(prompt)
    limit = room if params.max_tokens is None else min(params.max_tokens, room)
    expected = spelled(prompt, request.key, computed_as(completion), limit)
    stops = [i for i, token in enumerate(expected) if token in params.stop_token_ids]
    assert tuple(completion.token_ids) == expected[: stops[0] + 1 if stops else limit]
    if stops:
        assert completion.finish_reason == "stop"
    else:
        assert completion.finish_reason == ("length" if limit == params.max_tokens else "context")


def run_spelling(requests: list[Request], **config: int) -> Ran:
    ran = run(spelling_engine(requests, **config), requests)
    for completion in ran.completions.values():
        assert_spelled(completion)
    return ran


def test_samples_without_max_tokens_end_where_the_memory_does() -> None:
    """They are not refused before, and what does not get there is as with more memory."""
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    prompts = [random_tokens(n, random.Random(n)) for n in (9, 30)]
    stops = [replace(params, stop_token_ids=range(3, 20)), params]
    requests = [Request(i, prompt, stops[i], range(3)) for i, prompt in enumerate(prompts)]
    ample = run_spelling(requests, blocks=400)
    engine = spelling_engine(requests, blocks=22)
    ran = run(engine, requests)
    assert {k: c.finish_reason for k, c in ample.completions.items() if k[0]} == dict.fromkeys(
        [(1, 0), (1, 1), (1, 2)], "context"
    )
    for key, completion in ran.completions.items():
        whole = ample.completions[key]
        if key[0] == 0:
            assert completion == whole and whole.finish_reason == "stop"
            continue
        room = (22 - 8) * 4 + 1  # blocks beside the prompt's, and a token that is never fed
        assert (completion.finish_reason, len(completion.token_ids)) == ("error", room)
        assert completion.token_ids == whole.token_ids[:room]
        assert str(completion.error).startswith("the KV cache has no room for more after 57 tokens")
    with pytest.raises(CapacityError, match="lower max_tokens"):
        engine.check(replace(requests[1], params=replace(params, max_tokens=200)))


def check_random_job(job: RandomJob) -> None:
    engine = job.engine(loaded("llama"))
    engine.runner = SpellingRunner(engine, job.requests)  # type: ignore[assignment]
    ran = run(engine, job.requests)
    for completion in ran.completions.values():
        assert_spelled(completion)
    computed = [c for c in ran.completions.values() if computed_as(c) == c.sample]
    drawn = sum(len(completion.token_ids) for completion in computed)
    assert (ran.stats.generated_tokens, ran.stats.completions) == (drawn, len(ran.completions))
    assert ran.stats.copies == len(ran.completions) - len(computed)
    job.check_counts(ran.stats)


@pytest.mark.turn(4)
@settings(max_examples=25, deadline=None)
@given(jobs())
def test_random_jobs(job: RandomJob) -> None:
    check_random_job(job)


@pytest.mark.slow
@pytest.mark.turn(10)
@pytest.mark.timeout(900)
@settings(max_examples=700, deadline=None)
@given(jobs(max_tokens=60))
def test_many_more_random_jobs(job: RandomJob) -> None:
    check_random_job(job)


# -- accounting ---------------------------------------------------------------------------------


class Bookkeeper(CheckedEngine):
    """Counts blocks by itself, step by step: shared nodes once, and what live rows have reached."""

    def step(self) -> list[Completion]:
        finished = super().step()
        cache = self.scheduler.cache
        nodes = [node for node in cache.tree.nodes() if cache.stored[node].placed]
        rows = list(self.scheduler.rows.running())
        prompts = sum(self.pool.blocks_for(node.length) for node in nodes)
        least = prompts + sum(max(1, self.pool.blocks_for(s.fed)) for s in rows)
        most = prompts + sum(self.pool.blocks_for(s.fed + 1) for s in rows)  # the next input's
        assert least <= self.pool.num_used <= most
        return finished


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("max_sequences", [1, 5, 64])
@pytest.mark.turn(3)
def test_prompts_are_computed_once_and_blocks_are_those_in_use(
    block_size: int, max_sequences: int
) -> None:
    prompts = forest()
    requests = requests_of(prompts, replace(PARAMS, max_tokens=11), samples=3)
    engine = spelling_engine(
        requests, block_size=block_size, max_sequences=max_sequences, blocks=1600 // block_size
    )
    engine.__class__ = Bookkeeper  # asserts as it goes
    run(engine, requests)
    stats, tree = engine.stats, PrefixTree.build(prompts, block_size)
    assert stats.preemptions == 0
    assert stats.prompt_tokens_computed == tree.num_tokens
    assert stats.prompt_tokens_asked == 3 * sum(map(len, prompts))
    assert stats.generated_tokens == 3 * 11 * len(prompts)
    assert (stats.completions, stats.requests_done) == (3 * len(prompts), len(prompts))


def test_peak_is_shared_nodes_once_and_live_suffixes() -> None:
    """40 shared tokens, 3 problems of 5 and 4 samples of each, 9 outputs of which 8 are fed."""
    shots = list(range(3, 43))
    prompts = [shots + [50 + i] * 5 for i in range(3)]
    requests = requests_of(prompts, replace(PARAMS, max_tokens=9), samples=4)
    stats = run_spelling(requests).stats
    assert stats.peak_blocks == 40 // 4 + 3 * 2 + 12 * 2
    assert stats.prompt_tokens_computed == 40 + 3 * 5
    assert stats.decode_steps == 8


def test_a_sequence_leaves_at_its_limit_before_its_last_token_is_seen() -> None:
    requests = requests_of([[5, 6]], replace(PARAMS, max_tokens=9))
    engine = spelling_engine(requests)
    engine._lag = 1
    run(engine, requests)
    assert engine.stats.decode_steps == 8


def in_flight_by_step(engine: CheckedEngine, requests: list[Request]) -> list[tuple[str, int]]:
    """What each step was, and how many were not collected behind it."""
    steps: list[tuple[str, int]] = []
    stats = engine.stats
    engine.begin()
    engine.add(requests)
    while engine.has_work:
        before = stats.prefill_steps, stats.decode_steps
        engine.step()
        prompts, rows = stats.prefill_steps > before[0], stats.decode_steps > before[1]
        kind = "prompts" if prompts else "rows" if rows else "nothing"
        steps.append((kind, len(engine._in_flight)))
    engine.end()
    return steps


def test_where_all_rows_leave_the_host_seats_the_next_before_it_reads() -> None:
    """Two requests of three samples, three rows, nine tokens: eight steps of rows each."""
    requests = requests_of([[5, 6], [5, 7]], replace(PARAMS, max_tokens=9), samples=3)
    engine = spelling_engine(requests, max_sequences=3)
    engine._lag = 1
    engine.scheduler.prefill.ahead_tokens = 50  # the second prompt comes along with the first
    steps = in_flight_by_step(engine, requests)
    assert [count for kind, count in steps if kind == "rows"] == [1] * 7 + [2] + [1] * 8


@pytest.mark.parametrize("ahead", [0, 3])
def test_prompts_come_before_their_rows_are_free(ahead: int) -> None:
    """Else the rows wait until their first tokens are drawn, and seen."""
    prompts = [[5, 6], [5, 7], [5, 8]]
    requests = requests_of(prompts, replace(PARAMS, max_tokens=9), samples=3)
    engine = spelling_engine(requests, max_sequences=3)
    engine._lag = 1
    engine.scheduler.prefill.ahead_tokens = 0
    engine.scheduler.prefill.ahead_steps = ahead
    kinds = [kind for kind, _ in in_flight_by_step(engine, requests)]
    wave = ["rows"] * 8
    if ahead:
        second = [*wave[ahead:], "prompts", *wave[:ahead]]
        assert kinds == ["prompts", "prompts", *wave, *second, *wave, "nothing"]
    else:
        third = ["prompts", "nothing", *wave]
        assert kinds == ["prompts", "prompts", *wave, *wave, *third, "nothing"]


# -- admission ----------------------------------------------------------------------------------


def test_more_samples_than_rows() -> None:
    requests = requests_of([[5, 6, 7]], replace(PARAMS, max_tokens=10), samples=25)
    stats = run_spelling(requests, max_sequences=4).stats
    assert stats.prompt_tokens_computed == 3 and stats.preemptions == 0
    assert stats.decode_steps == 7 * 9  # seven rounds of four, full to the end


def test_rows_are_filled_as_they_empty() -> None:
    """Samples of unlike lengths: no row waits for the longest."""
    requests = [
        Request(i, [5, 6, 7], replace(PARAMS, max_tokens=1 + length), range(1))
        for i, length in enumerate([30, 10, 10, 10])
    ]
    assert run_spelling(requests, max_sequences=2).stats.decode_steps == 30


def test_problems_are_admitted_in_order() -> None:
    prompts = [[10 + i] * 6 for i in range(12)]
    requests = requests_of(prompts, replace(PARAMS, max_tokens=5), samples=2)
    engine = spelling_engine(requests, max_sequences=4)
    order = [completion.request.key for completion in engine.generate(requests)]
    rounds = [order[i : i + 4] for i in range(0, 24, 4)]
    assert [sorted(keys) for keys in rounds] == [[i, i, i + 1, i + 1] for i in range(0, 12, 2)]


def test_admission_leaves_room_for_what_runs() -> None:
    """Nothing is known of the lengths: only what surely fits is admitted, and nobody preempted."""
    requests = requests_of([[10 + i] * 4 for i in range(8)], replace(PARAMS, max_tokens=16))
    stats = run_spelling(requests, blocks=16).stats
    assert stats.preemptions == 0


def test_admission_learns_from_what_has_finished() -> None:
    """Samples end long before their limit: soon many run at a time."""
    stops = [token for token in range(3, 128) if token % 4 == 0]
    params = replace(PARAMS, max_tokens=200, stop_token_ids=stops)
    requests = requests_of([[10, 11, 12]], params, samples=400)
    engine = spelling_engine(requests, blocks=120, max_sequences=64)
    most = 0
    for _ in engine.generate(requests):
        most = max(most, engine.scheduler.num_running)
    assert most > 16  # the limit alone would allow two


def test_one_sample_that_fits_just_so() -> None:
    prompt = random_tokens(30, random.Random(0))
    requests = requests_of([prompt], replace(PARAMS, max_tokens=20), samples=3)
    # Eight blocks of prompt, five of output; only nineteen of the twenty tokens are fed.
    stats = run_spelling(requests, blocks=13).stats
    assert (stats.peak_blocks, stats.preemptions) == (13, 0)


def test_nodes_go_with_their_last_sample() -> None:
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i] for i in range(6)], PARAMS)
    engine = spelling_engine(requests, max_sequences=1)
    for done, _ in enumerate(engine.generate(requests), start=1):
        cache = engine.scheduler.cache
        leaves = [node for node in cache.tree.nodes() if not node.children]
        assert len([leaf for leaf in leaves if leaf not in cache.idle]) == 6 - done
    assert [node.length for node in cache.idle] == [40]  # the examples stay for other requests
    assert_empty(engine)


def test_what_prompts_share_stays_for_the_next_call() -> None:
    """In any order, also when a call is closed early; none of it is computed again."""
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i] for i in range(18)], PARAMS, samples=2)
    engine = spelling_engine(requests, max_sequences=5)
    run(engine, requests[:6])
    assert engine.stats.prompt_tokens_computed == 40 + 6
    completions = engine.generate(requests[6:12])
    next(completions)
    completions.close()  # type: ignore[attr-defined]
    before = engine.stats.prompt_tokens_computed
    assert before <= 40 + 12
    run(engine, requests[12:])
    assert engine.stats.prompt_tokens_computed == before + 6
    assert engine.stats.prompt_tokens_found == 2 * 40
    assert engine.stats.prompt_tokens_recomputed == 0


def test_what_stays_can_be_forgotten() -> None:
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i] for i in range(6)], PARAMS)
    engine = spelling_engine(requests)
    for computed in (46, 92):
        run(engine, requests)
        engine.reset_prefix_cache()
        assert engine.pool.num_used == 0 and engine.stats.prompt_tokens_computed == computed
    completions = engine.generate(requests)
    next(completions)
    with pytest.raises(UsageError, match="a job runs"):
        engine.reset_prefix_cache()
    completions.close()  # type: ignore[attr-defined]


def test_a_prompt_a_call() -> None:
    """The second call shows where its prompt parts from the first one's; the third finds it."""
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i, 60] for i in range(4)], PARAMS, samples=2)
    engine = spelling_engine(requests)
    computed = []
    for request in requests:
        run(engine, [request])
        computed.append(engine.stats.prompt_tokens_computed - sum(computed))
    assert computed == [42, 42, 2, 2]


def test_what_is_idle_goes_when_memory_is_needed() -> None:
    """The oldest first, and whoever runs gets all of it."""
    one, two = list(range(3, 43)), list(range(43, 83))
    requests = requests_of([[*shots, 90 + i] for shots in (one, two) for i in range(2)], PARAMS)
    long = Request(9, [5] * 44, replace(PARAMS, max_tokens=60), range(1))
    engine = spelling_engine([*requests, long], blocks=36)
    run(engine, requests[:2])
    run(engine, requests[2:])
    cache = engine.scheduler.cache
    assert [node.tokens[0] for node in cache.idle] == [3, 43] and cache.idle_blocks == 20
    run(engine, [long])  # 26 blocks: those that are left are of the second ones
    assert [node.tokens[0] for node in cache.idle] == [43]
    assert engine.stats.preemptions == 0


def test_after_a_fault_nothing_stays() -> None:
    """What was interrupted half-way may never have been computed."""
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i] for i in range(6)], PARAMS)
    engine = spelling_engine(requests)
    run(engine, requests)
    failing = engine.generate(requests)
    engine.runner.decode = lambda batch: 1 / 0  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError):
        list(failing)
    assert not engine.scheduler.cache.idle and engine.pool.num_used == 0
    assert_empty(engine)


# -- requests that come late --------------------------------------------------------------------


def test_requests_are_read_as_they_are_needed() -> None:
    prompts = [[3 + i % 40] * 5 + [7] for i in range(100)]
    requests = requests_of(prompts, replace(PARAMS, max_tokens=4))
    engine = spelling_engine(requests, max_sequences=2, lookahead=8)
    read = 0

    def source() -> Iterator[Request]:
        nonlocal read
        for request in requests:
            read += 1
            yield request

    done = 0
    for completion in engine.generate(source()):
        assert_spelled(completion)
        done += 1
        assert read <= done + 2 + 8 + 4
    assert done == 100


def test_requests_without_samples_are_read_past() -> None:
    """A resumed job that begins with problems that are all done goes on to the others."""
    requests = [Request(i, [3 + i] * 5, PARAMS, range(i >= 20 and i % 9 == 0)) for i in range(60)]
    assert {key for key, _ in run_spelling(requests, lookahead=8).results} == {27, 36, 45, 54}


def test_more_requests_may_be_added_later() -> None:
    """What is read later finds the shared node standing, and what stands is not computed again."""
    shots = list(range(3, 43))
    requests = requests_of([[*shots, 50 + i] for i in range(12)], PARAMS)
    stats = run_spelling(requests, max_sequences=2, lookahead=4).stats
    assert stats.prompt_tokens_computed == 40 + 12


@pytest.mark.slow
def test_closing_early_leaves_nothing() -> None:
    requests = requests_of(forest(), PARAMS, samples=5)
    for lag in (0, 1):
        for taken in (0, 1, 7, 40):
            engine = spelling_engine(requests, max_sequences=9, blocks=60)
            engine._lag = lag
            completions = engine.generate(requests)
            assert len(list(islice(completions, taken))) == taken
            completions.close()  # type: ignore[attr-defined]
            assert_empty(engine)
            run(engine, requests)
