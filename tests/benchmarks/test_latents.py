"""Both forms of latent attention as one measurement."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.commands import app
from benchmarks.latents import bench_latents, same_tokens
from sharegen.cli import main
from sharegen.errors import UsageError

SMALL = "benchmarks/shapes/rehearsal"


@pytest.mark.parametrize("shape", ["glm-4.7-flash", "deepseek-v2-lite"])
@pytest.mark.turn(2)
def test_both_forms_draw_the_same_tokens(shape: str) -> None:
    found = same_tokens(f"{SMALL}/{shape}", "float32", "cpu", [False])
    assert found["differing"] == {"latents, eager": 0, "spread, eager": 0}


def test_a_token_takes_less_as_a_latent(capsys: Any) -> None:
    words = ["latents", f"{SMALL}/glm-4.7-flash", "--workload", "32,8,2,2,3", "--device", "cpu"]
    with pytest.raises(SystemExit) as exit:
        main([*words, "--dtype", "float32", "--no-compile"], commands=app, name="benchmarks")
    latent, spread = map(json.loads, capsys.readouterr().out.splitlines())
    assert exit.value.code == 0 and (latent["form"], spread["form"]) == ("latents", "spread")
    assert latent["own_token_bytes"] * 2 <= spread["own_token_bytes"]
    assert latent["tokens"] == spread["tokens"] == 12


def test_a_shape_without_latents_has_one_form() -> None:
    with pytest.raises(UsageError, match="keeps no latents here"):
        next(bench_latents(f"{SMALL}/phi-4", "32,8,2,2,3", 8, "float32", "cpu", False))
