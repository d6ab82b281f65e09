"""On a GPU in the deterministic mode: what requests ask for changes no bit of their samples."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from sharegen import LLM
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import BeamSearchParams, Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.load import load_model
from sharegen.engine.schedule.swapping import SwapCost
from tests.job.same_bits import REAL, make_place

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PLAIN = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True)
SHORT = replace(PLAIN, n=4, max_tokens=12)
BEAMS = BeamSearchParams(beam_width=4, max_tokens=20)
ASKED = {
    "plain": PLAIN,
    "filtered": replace(PLAIN, top_k=50, top_p=0.9, min_p=0.01),
    "penalised": replace(PLAIN, repetition_penalty=1.3, frequency_penalty=0.2),
    "biased": replace(PLAIN, logit_bias={7: 3.0}),
    "structured": replace(
        PLAIN, ignore_eos=False, structured_outputs=StructuredOutputsParams(regex="[a-z ]{9,90}")
    ),
    "beams": BEAMS.of_rows,
}

Drawn = dict[tuple[int, int], tuple[list[int], float]]


def requests() -> list[Request]:
    """One of each kind below what all share, and many plain ones beside them."""
    rng = random.Random(0)
    shared = [rng.randrange(5, 300) for _ in range(500)]
    found = []
    for i, (name, params) in enumerate(ASKED.items()):
        own = [rng.randrange(5, 300) for _ in range(30 + i)]
        beam = BEAMS if name == "beams" else None
        found.append(Request(i, shared + own, params, range(params.n if beam else 8), beam=beam))
    return [*found, Request(99, shared + found[0].prompt_token_ids[490:], PLAIN, range(150))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("same") / "dense"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return make_place(folder, "dense", REAL, device, torch.bfloat16)


def engine_of(place: Path, rows: int, **how: Any) -> Engine:
    config = EngineConfig(
        max_sequences=rows, compile=False, deterministic=True,
        **{"kv_cache_memory": 1 << 30} | how,
    )  # fmt: skip
    model = load_model(str(place), device="cuda", dtype="bfloat16")
    return Engine(model, AutoTokenizer.from_pretrained(place), config)


@pytest.fixture(scope="module")
def engine(place: Path) -> Iterator[Engine]:
    made = engine_of(place, 256)
    yield made
    made.close()


def draw(engine: Engine, asked: list[Request]) -> Drawn:
    engine.reset_prefix_cache()
    return {
        (done.request.key, done.sample): (done.token_ids, done.cumulative_logprob)
        for done in engine.generate(asked)
    }


def test_alone_and_beside_others(engine: Engine) -> None:
    asked = requests()
    together = draw(engine, asked)
    for i, name in enumerate(ASKED):
        alone = draw(
            engine, [each if each.key == i else replace(each, samples=()) for each in asked]
        )
        other = [key for key, found in alone.items() if together[key] != found]
        assert alone and not other, f"{name}: {len(other)} of {len(alone)}"


def test_in_few_rows(engine: Engine, place: Path) -> None:
    together = draw(engine, requests())
    small = engine_of(place, 16)
    found = draw(small, requests())
    small.close()
    assert found == together


def test_what_an_earlier_call_has_left(engine: Engine) -> None:
    """Its prompts lie in the prefix cache: whoever finds them there draws the same."""
    together = draw(engine, requests())
    saved = engine.stats.prompt_tokens_found
    warm = {
        (done.request.key, done.sample): (done.token_ids, done.cumulative_logprob)
        for done in engine.generate(requests())
    }
    assert engine.stats.prompt_tokens_found > saved
    assert warm == together


@pytest.mark.parametrize("swap_space", [0.0, 0.25])
def test_preempted(engine: Engine, place: Path, swap_space: float) -> None:
    """Samples that are longer than it was told, in little memory: their tokens are fed again, or
    their KV lies in the host's memory meanwhile.
    """
    asked = [each for each in requests() if each.beam is None]
    together = draw(engine, asked)
    tight = engine_of(place, 256, kv_cache_memory=20 << 20, swap_space=swap_space)
    tight.scheduler.swapping.cost = SwapCost()  # a model so small is quicker to run again
    found = {
        (done.request.key, done.sample): (done.token_ids, done.cumulative_logprob)
        for done in tight.generate(asked, lengths=Lengths(ended=Counter({2: 1 << 20})))
    }
    stats = tight.stats
    tight.close()
    assert stats.preemptions > 0 and (stats.swaps > 0) == (swap_space > 0)
    assert found == together


@pytest.mark.parametrize("any_tree", [False, True])
def test_a_seed_in_python(place: Path, any_tree: bool) -> None:
    """Others of the call's tree draw few samples or many; with any tree they are left out, too."""
    asked = [each for each in requests() if each.params == PLAIN]
    prompts = [{"prompt_token_ids": each.prompt_token_ids} for each in asked]
    prompts += [{"prompt_token_ids": asked[0].prompt_token_ids[: 40 * i]} for i in range(1, 9)]
    seeded = replace(PLAIN, seed=5, n=4, logprobs=0)
    with LLM(
        place, dtype="bfloat16", kv_cache_memory=1 << 30, max_sequences=256, compile=False,
        deterministic=True, any_tree=any_tree,
    ) as llm:  # fmt: skip

        def drawn(others: int | None) -> list[object]:
            """What the first prompt's samples are beside so many of each other one."""
            llm.reset_prefix_cache()
            beside = [] if others is None else prompts[1:]
            params = [seeded, *[replace(seeded, n=others or 1)] * len(beside)]
            first, *_ = llm.generate([prompts[0], *beside], params)
            return [(each.token_ids, each.cumulative_logprob) for each in first.outputs]

        many = drawn(20)
        assert drawn(2) == many
        assert not any_tree or drawn(None) == many


@pytest.mark.filterwarnings("ignore:out of memory")
def test_steps_that_find_no_memory(place: Path) -> None:
    """Three of them are taken back, and done in parts."""
    usual, short = engine_of(place, 256), engine_of(place, 256)
    together = draw(usual, requests())
    usual.close()
    for name, failing in (("prefill", {0}), ("decode", {3, 20})):
        setattr(short.runner, name, _without_memory(getattr(short.runner, name), failing))
    found = draw(short, requests())
    assert short.stats.shrinks == 3
    short.close()
    assert found == together


def _without_memory(forward: Callable[..., Any], failing: set[int]) -> Callable[..., Any]:
    """forward, but for those of its calls that compute and then find no memory."""
    calls = count()

    def run(batch: object) -> object:
        drawn = forward(batch)
        if next(calls) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return drawn

    return run


def test_forks(engine: Engine) -> None:
    """Of a sample that has ended, beside many others and beside few."""
    plain, *_, many = requests()

    def forked(others: int) -> Drawn:
        engine.reset_prefix_cache()
        found: Drawn = {}
        key = -1
        for done in engine.generate([plain, replace(many, samples=range(others))]):
            if (done.request.key, done.sample) == (0, 0):
                key = engine.fork(done, SHORT, tokens=5)
            if done.request.key == key:
                found[key, done.sample] = done.token_ids, done.cumulative_logprob
        return found

    first = forked(150)
    assert len(first) == SHORT.n and forked(2) == first
