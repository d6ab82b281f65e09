"""Few rows until a job's first sample has ended."""

import random

import pytest

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.first_rows import _STEPS, FirstRows
from tests.engine.jobs import loaded, make_engine, random_tokens, run


def test_all_rows_are_there_where_nothing_is_said():
    first = FirstRows()
    assert first.most(256, 1) == 256


def test_rows_are_few_until_a_sample_has_ended_and_in_the_next_job_again():
    first = FirstRows(8)
    assert (first.most(256, 1), first.most(4, 1)) == (8, 4)
    assert first.most(256, 20) == 20  # beams, which decode together
    first.end()
    assert first.most(256, 1) == 256
    first.begin()
    assert first.most(256, 1) == 8


def test_a_long_sample_is_not_waited_for():
    first = FirstRows(8)
    for _ in range(_STEPS):
        assert first.most(256, 1) == 8
        first.step()
    assert first.most(256, 1) == 256


@pytest.mark.turn(2)
@pytest.mark.parametrize("longest", [6, _STEPS + 20])
def test_a_job_draws_the_same_and_fills_the_rows_later(longest, monkeypatch):
    params = SamplingParams(temperature=1.0, max_tokens=longest, ignore_eos=True)
    prompts = [random_tokens(20, random.Random(i)) for i in range(3)]
    requests = [Request(i, prompt, params, range(6)) for i, prompt in enumerate(prompts)]
    drawn, running = {}, {}
    for few in (None, 2):
        engine = make_engine(loaded("llama"), blocks=400, max_sequences=12, first_rows=few)
        seen = running[few] = []
        step = engine.step

        def watched(step=step, engine=engine, seen=seen):
            done = step()
            seen.append(engine.scheduler.num_running)
            return done

        monkeypatch.setattr(engine, "step", watched)
        ran = run(engine, requests)
        drawn[few] = {key: tuple(each.token_ids) for key, each in ran.completions.items()}
    assert drawn[None] == drawn[2]
    assert max(running[2][:5]) == 2 and max(running[2]) == max(running[None]) == 12
