"""A batch is data: written down, read again and run elsewhere, it draws the same tokens."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any

import pytest

from sharegen.engine.core.batch import Batch, DecodeBatch, PrefillBatch
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.drawn import Drawn
from tests.engine.jobs import (
    CheckedEngine,
    forest,
    hope_for_the_best,
    loaded,
    make_engine,
    run,
    swap_always,
)

WAYS = [
    SamplingParams(temperature=1.1, max_tokens=25, stop_token_ids=[5, 50, 95]),
    SamplingParams(temperature=0, max_tokens=12, repetition_penalty=1.3, logprobs=2),
    SamplingParams(top_p=0.9, max_tokens=20, prompt_logprobs=1, min_tokens=4, seed=7),
    SamplingParams(top_k=9, max_tokens=30, logit_bias={77: 2.0}, frequency_penalty=0.5),
]
REQUESTS = [Request(i, prompt, WAYS[i % 4], range(6)) for i, prompt in enumerate(forest())]

Said = tuple[Any, ...]


def said(drawn: Drawn) -> Said:
    top = drawn.get_top() if drawn.has_top else None
    prompt = (drawn.prompt.get(), drawn.prompt.get_top()) if drawn.prompt is not None else None
    return drawn.get(), drawn.get_ended(), top, prompt


class NumbersOnly(pickle.Unpickler):
    """Refuses all classes but those that hold numbers."""

    def find_class(self, module: str, name: str) -> Any:
        ours = module in ("sharegen.engine.core.batch", "sharegen.kernels.layout")
        params = (module, name) == ("sharegen.engine.core.request", "SamplingParams")
        assert ours or params or module.split(".")[0] in ("numpy", "_codecs"), f"{module}.{name}"
        return super().find_class(module, name)


def recording(engine: CheckedEngine) -> list[tuple[bytes, Said]]:
    """Every batch of the jobs to come as it went to the runner, and what came of it."""
    written: list[tuple[bytes, Said]] = []
    for method in ("prefill", "decode"):
        real = getattr(engine.runner, method)

        def step(batch: Batch, real: Any = real) -> Drawn:
            data = pickle.dumps(batch)
            drawn: Drawn = real(batch)
            written.append((data, said(drawn)))
            return drawn

        setattr(engine.runner, method, step)
    return written


@pytest.mark.parametrize(("name", "lag"), [("llama", 0), ("gemma2", 1)])
@pytest.mark.turn(2)
@pytest.mark.slow
def test_batches_of_a_job_run_again_elsewhere(
    name: str, lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With preemption, compaction, penalties and log-probabilities; bit for bit.

    One of them swaps to host memory.
    """
    sizes = {"blocks": 200, "max_sequences": 64, "prefill_tokens": 24, "host_blocks": 400 * lag}
    engine = make_engine(loaded(name), **sizes)
    engine._lag = lag
    swap_always(engine)
    hope_for_the_best(engine)
    written = recording(engine)
    run(engine, REQUESTS)
    assert engine.stats.preemptions > 0 and bool(engine.stats.swaps) == bool(lag)

    runner = make_engine(loaded(name), **sizes).runner
    kinds = set()
    moved = 0
    for data, expected in written:
        batch = NumbersOnly(io.BytesIO(data)).load()
        kinds.add(type(batch))
        if isinstance(batch, PrefillBatch):
            drawn = runner.prefill(batch)
        else:
            moved += len(batch.moves)
            drawn = runner.decode(batch)
        assert said(drawn) == expected
    assert kinds == {PrefillBatch, DecodeBatch} and moved > 0


def test_a_batch_brings_prompts_only_where_draws_look_at_them() -> None:
    engine = make_engine(loaded("llama"))
    written = recording(engine)
    plain = replace(WAYS[0], max_tokens=3)
    repeating = replace(plain, repetition_penalty=1.2)
    ways = enumerate([plain, repeating])
    run(engine, [Request(i, [7 + i] * 20, way, range(2)) for i, way in ways])
    batches = [pickle.loads(data) for data, _ in written]
    lengths = {len(d.prompt) for batch in batches for d in batch.drawings}
    assert lengths == {0, 20}
