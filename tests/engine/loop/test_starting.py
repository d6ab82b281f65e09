"""What an engine says as it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sharegen.engine import prepared as prepared_module
from sharegen.engine.execute.attention import ReferenceAttention
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


@pytest.mark.slow
def test_the_compiler_is_imported_for_gpus_alone() -> None:
    """It takes a second, of every command that has an engine."""
    code = "import sys, sharegen.engine.engine; print('torch._inductor.choices' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
