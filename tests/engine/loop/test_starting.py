"""What an engine says as it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sharegen.engine import prepared as prepared_module
from sharegen.engine.core.batch import DecodeBatch
from sharegen.engine.execute.attention import ReferenceAttention
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.loop.starting import rehearse
from tests.engine.jobs import GREEDY, forest, loaded, make_engine, requests_of, run


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
