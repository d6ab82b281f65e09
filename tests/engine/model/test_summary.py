"""The five lines of `--show-model`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sharegen import LLM
from sharegen.engine.config import EngineConfig
from sharegen.engine.model import load
from sharegen.engine.model.load import load_model
from sharegen.engine.model.summary import Optimised, summary
from sharegen.engine.prepared import left_beside
from sharegen.kernels import tiles
from tests.engine.tiny_models import make_tiny

FOUND = {
    "llama": [
        "model: llama, attention: 2 layers of 4 heads on 2 of size 8",
        "states: none; experts: none",
    ],
    "gpt_oss": [
        "model: gpt_oss, attention: 1 layer of 4 heads on 2 of size 8 with a window of 6 and sinks;"
        " 1 layer of 4 heads on 2 of size 8 with sinks",
        "states: none; experts: 2 layers of 4 (GptOssExperts)",
    ],
    "gemma2": [
        "model: gemma2, attention: 1 layer of 4 heads on 2 of size 8 with a window of 6 and a "
        "softcap of 2; 1 layer of 4 heads on 2 of size 8 with a softcap of 2",
        "states: none; experts: none",
    ],
    "deepseek_v3": [
        "model: deepseek_v3, attention: 2 layers of 4 heads on 4 of size 12 (keys) and 6 (values) "
        "with latents of 16",
        "states: none; experts: 1 layer of 4 (DeepseekV3Experts)",
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_in_a_model(name: str) -> None:
    loaded = load_model(make_tiny(name))
    optimised = Optimised(["two norms"], ["mixers: no time"])
    lines = summary(loaded, optimised)
    assert lines[:2] == FOUND[name]
    assert lines[2].startswith("weights: 0.00 GiB in float32")
    assert lines[3:] == ["fused or compiled: two norms", "not fused or compiled: mixers: no time"]
    loaded.release()


def test_states_are_named() -> None:
    loaded = load_model(make_tiny("qwen3_next"))
    assert summary(loaded, Optimised())[1].startswith("states: 1 Qwen3NextGatedDeltaNet, 0.0")
    loaded.release()


def test_what_a_gpu_does_not_make_fast_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(make_tiny("deepseek_v3"))
    assert left_beside(loaded, EngineConfig()) == []
    on_gpu = replace(loaded, device=torch.device("cuda"))
    monkeypatch.setattr(tiles, "shared_memory_limit", lambda device: 1)
    latents, experts = left_beside(on_gpu, EngineConfig())
    assert "latents of 16 take" in latents and "(this GPU has 1)" in latents
    assert experts.startswith("experts: torch multiplies them in float32 with the host's help")
    latents, _ = left_beside(on_gpu, EngineConfig(deterministic=True))
    assert "spread out: their kernel has no order that is the same in every batch" in latents
    monkeypatch.setattr(tiles, "shared_memory_limit", lambda device: 227 << 10)
    assert left_beside(replace(on_gpu, dtype=torch.bfloat16), EngineConfig()) == []
    loaded.release()


def test_an_engine_says_it_where_it_is_asked(tmp_path: Path) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    for asked in (False, True):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            LLM(str(tmp_path), device="cpu", show_model=asked).close()
        lines = [str(warning.message) for warning in said if "sharegen" in warning.filename]
        assert len(lines) == (5 if asked else 0)
    assert lines[-1] == "not fused or compiled: the whole model: a CPU runs the model's own code"


def test_a_model_that_nobody_tested_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny("llama").save_pretrained(tmp_path)
    monkeypatch.setattr(load, "TESTED", frozenset())
    with pytest.warns(UserWarning, match="llama is not among the architectures that are tested"):
        load_model(tmp_path, device="cpu")
