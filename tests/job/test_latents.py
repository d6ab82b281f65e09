"""A job of a model with latents draws the same whoever draws it, and its plan says what fits."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from sharegen.cli.plan import plan_table
from sharegen.common.shard import Shard
from sharegen.job.dry_run import plan_job
from sharegen.job.run_job import run_job
from sharegen.workload.configuration import Configuration, Machine
from tests.engine.tiny_models import tiny_config
from tests.job.parts import configure, records


@pytest.fixture(scope="module")
def latent(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job for a model of DeepSeek's kind."""
    place = tmp_path_factory.mktemp("latent") / "job"
    shutil.copytree(folder, place)
    (place / "model" / "model.safetensors").unlink()
    config = tiny_config("deepseek_v3")
    config.vocab_size, config.max_position_embeddings = 384, 512
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(place / "model")
    return place


def latents(folder: Path, samples: int, **machine: Any) -> Configuration:
    chosen = Machine(device="cpu", workers=1, dtype="float32").model_copy(update=machine)
    return configure(folder, samples=samples).model_copy(update={"machine": chosen})


def test_the_plan_says_what_a_token_takes(latent: Path) -> None:
    """Keys and values 72 numbers a layer, of which four latents of 20 take the room."""
    some = plan_job(latents(latent, 3))
    assert (some.latent_bytes, some.spread_bytes) == (2 * 20 * 4, 4 * 2 * 20 * 4)
    assert some.kv_suffix_bytes == 10 * some.latent_bytes
    own = plan_job(latents(latent, 1))  # prompts with one sample are latents, too
    assert own.kv_shared_bytes < some.kv_shared_bytes
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(plan_table(some, None))
    assert "as a latent, where one sample reads it" in console.export_text()


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.parametrize("samples", [1, 2])
def test_parts_of_it_draw_what_the_whole_draws(latent: Path, tmp_path: Path, samples: int) -> None:
    path = tmp_path / "whole.jsonl"
    run_job(latents(latent, samples), path)
    whole = records(path)
    parts: dict[tuple[str, int | None], dict[str, Any]] = {}
    for index in (1, 2):
        shard = Shard(index, 2)
        parts |= records(run_job(latents(latent, samples), tmp_path / "a.jsonl", shard=shard).path)
    assert parts == whole  # to the bit
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::3]))
    assert run_job(latents(latent, samples, max_sequences=3), path).drawn > 0
    assert records(path) == whole


def test_in_the_deterministic_mode_a_prompt_lies_as_that_of_a_job_that_may_grow(
    latent: Path,
) -> None:
    mode = {"deterministic": True}
    one, more = (plan_job(latents(latent, samples, **mode)) for samples in (1, 40))
    assert one.kv_shared_bytes == more.kv_shared_bytes
