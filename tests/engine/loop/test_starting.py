"""What an engine says as it starts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from sharegen.engine import prepared as prepared_module
from sharegen.engine.core.batch import DecodeBatch
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.execute.attention import ReferenceAttention
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.loop.starting import rehearse
from tests.engine.jobs import (
    GREEDY,
    CheckedEngine,
    engine_config,
    forest,
    loaded,
    make_engine,
    requests_of,
    run,
)


def test_attention_without_kernels_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for a head size that no kernel serves."""
    reason = "a head size of 512 (at most 256)"
    monkeypatch.setattr(
        prepared_module, "attention_for",
        lambda layers, cache, *_: ReferenceAttention(layers, cache, reason),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="plain torch computes all attention.*a head size of 512"):
        engine = make_engine(loaded("llama"))
    stats = run(engine, requests_of(forest(), GREEDY)).stats
    assert stats.slow_attention == reason
    assert stats.slow_steps == stats.prefill_steps + stats.decode_steps > 0


def test_a_rehearsal_runs_steps_of_all_sizes_and_leaves_nothing_behind() -> None:
    """As on a GPU before a server is ready, so that no graph is captured later."""
    engine = make_engine(loaded("llama"), max_sequences=150)
    seen: list[int] = []
    decode = engine.runner.decode

    def noted(batch: DecodeBatch) -> Drawn:
        seen.append(engine.runner.padded(batch.num_rows))
        return decode(batch)

    engine.runner.decode = noted  # type: ignore[method-assign]
    rehearse(engine.generate, engine.reset_prefix_cache, engine.runner.padded, engine.slots, 4)
    assert seen == sorted(seen) and set(seen) == {32, 64, 96, 128, 160}
    engine._begin_books(engine._prepared)
    engine.scheduler.rows.send_all_again()
    assert engine.stats.generated_tokens == engine.pool.num_used == 0
    fresh = make_engine(loaded("llama"), max_sequences=150)
    asked = requests_of(forest(), GREEDY)
    assert run(engine, asked).results == run(fresh, asked).results


class KeptKeys:
    """Graphs that are captured in name alone: what tells them apart, but for the tables' width."""

    def __init__(self) -> None:
        self.keys: set[tuple[Any, ...]] = set()

    def run(self, rows: int, kind: Any, generation: int, step: Any, *_: Any, **__: Any) -> Any:
        features, num_end_ids, _, variant = kind
        self.keys.add((rows, features, num_end_ids, variant, generation))
        return step(rows)


def test_a_load_finds_the_graphs_of_the_rehearsal() -> None:
    """Whatever ends its samples; so on a GPU, where the tables have one width, too."""
    model = loaded("llama")
    config = replace(engine_config(model, max_sequences=70), arriving=True)
    engine = CheckedEngine(model, None, config)
    graphs = KeptKeys()
    engine.runner.graphs = graphs  # type: ignore[assignment]
    engine._rehearse(engine._prepared)
    known = set(graphs.keys)
    assert {rows for rows, *_ in known} == {32, 64, 96}
    asked = [
        Request(i, prompt, SamplingParams(temperature=i % 2, max_tokens=9, stop_token_ids=ids), [0])
        for ids in ([], [5, 6, 7, 8, 9])
        for i, prompt in enumerate(forest(), 100 * len(ids))
    ]
    engine.begin(arriving=True)
    for request in asked:
        engine.add([request])
        engine.step()
    while engine.has_work:
        engine.step()
    engine.end()
    assert engine.stats.requests_done == len(asked)
    assert graphs.keys == known


def test_a_rehearsal_for_which_there_is_no_room_is_left_out() -> None:
    engine = make_engine(loaded("llama"), blocks=8)
    rehearse(engine.generate, engine.reset_prefix_cache, engine.runner.padded, engine.slots, 4)
    assert not engine.has_work


@pytest.mark.slow
def test_the_compiler_is_imported_for_gpus_alone() -> None:
    """It takes a second, of every command that has an engine."""
    code = "import sys, sharegen.engine.engine; print('torch._inductor.choices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
