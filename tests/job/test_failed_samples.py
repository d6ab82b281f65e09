"""Jobs of models whose logits are no numbers, for some prompts or for all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from sharegen.errors import JournalError, ModelError
from sharegen.job.machine import load
from sharegen.job.run_job import run_job
from sharegen.results.journal.record import read
from sharegen.results.scoring.vote import tally
from sharegen.workload.configuration import Configuration, resolve
from tests.engine.jobs import poison
from tests.tiny import save_tiny_model

SAMPLES = 3
ROWS = ["Tom has 3 apples.", "A box holds 12 é eggs.", "How many?", "Tom has 12 eggs."]
BAD_ROW = "1"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def broken(whole: Path, folder: Path, change: Callable[[dict[str, Any], list[int]], None]) -> Path:
    """The model with changed weights; change is given them and the tokens of é."""
    shutil.copytree(whole, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights, AutoTokenizer.from_pretrained(folder).encode(" é", add_special_tokens=False))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def not_a_number(weights: dict[str, Any], tokens: list[int]) -> None:
    weights[EMBEDDING][tokens] = torch.nan


def too_large(weights: dict[str, Any], tokens: list[int]) -> None:
    """Finite in float16, until a layer adds to it."""
    weights[EMBEDDING][tokens] = 65_504.0
    weights["model.layers.0.mlp.down_proj.weight"] *= 1e3
    weights["model.layers.1.mlp.down_proj.weight"] *= 1e-3


def all_too_large(weights: dict[str, Any], tokens: list[int]) -> None:
    weights["model.layers.0.mlp.down_proj.weight"] *= 1e7


@pytest.fixture
def configure(tmp_path: Path) -> Any:
    rows = "".join(json.dumps({"prompt": row}) + "\n" for row in ROWS)
    (tmp_path / "rows.jsonl").write_text(rows)

    def configure(model: Path, **machine: Any) -> Configuration:
        given = {
            "model": str(model),
            "sampling": {"samples": SAMPLES, "max_tokens": 8, "temperature": 1.0, "seed": 3},
            "machine": {"device": "cpu", "kv_cache_memory": 1 << 22} | machine,
        }
        return resolve("prompts", str(tmp_path / "rows.jsonl"), given)

    return configure


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_failed_sample_is_a_line_with_its_error(
    configure: Any, whole: Path, tmp_path: Path
) -> None:
    run_job(configure(whole), tmp_path / "whole.jsonl")
    path = tmp_path / "a.jsonl"
    model = broken(whole, tmp_path / "broken", not_a_number)
    outcome = run_job(configure(model), path)
    assert outcome.drawn == len(ROWS) * SAMPLES
    failed = [r for r in records(path) if r["problem_id"] == BAD_ROW]
    assert sorted(r["sample"] for r in failed) == [0, 1, 2]
    for record in failed:
        assert record["error"] == (
            "the model's logits are NaN or infinite after 0 tokens: the checkpoint seems to be "
            "broken"
        )
        assert "completion" not in record and record["finish_reason"] == "error"
    assert sorted(r["completion"] for r in records(path) if r["problem_id"] != BAD_ROW) == sorted(
        r["completion"] for r in records(tmp_path / "whole.jsonl") if r["problem_id"] != BAD_ROW
    )
    assert outcome.run.counts["failed_samples"] == SAMPLES

    votes = {vote.problem_id: vote for vote in tally(read(path))}
    assert votes[BAD_ROW].samples == SAMPLES and votes[BAD_ROW].cast == 0
    text = path.read_text()
    assert run_job(configure(model), path).drawn == 0  # finished, as the others are
    assert path.read_text() == text


def test_failed_samples_are_drawn_again_when_asked(
    configure: Any, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads_poisoned(configuration: Configuration, *how: Any) -> Any:
        model, tokenizer = load(configuration, *how)
        [token] = tokenizer.encode(" é", add_special_tokens=False)
        poison(model, token)
        return model, tokenizer

    path = tmp_path / "a.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr("sharegen.job.loaded.load", loads_poisoned)
        run_job(configure(whole), path)
        assert run_job(configure(whole), path, retry_failed=True).drawn == SAMPLES
    assert len(records(path)) == len(ROWS) * SAMPLES  # they failed again: nothing new to say
    outcome = run_job(configure(whole), path, retry_failed=True)
    assert outcome.drawn == SAMPLES and "failed_samples" not in outcome.run.counts
    reader = read(path)
    assert all(record.is_drawn for record in reader) and not reader.duplicates
    run_job(configure(whole), tmp_path / "b.jsonl")
    assert {r.key: r.completion for r in read(path)} == {
        r.key: r.completion for r in read(tmp_path / "b.jsonl")
    }


def test_a_float16_that_overflows_on_some_prompts(
    configure: Any, whole: Path, tmp_path: Path
) -> None:
    model = broken(whole, tmp_path / "broken", too_large)
    path = tmp_path / "a.jsonl"
    run_job(configure(model, dtype="float16"), path)
    failed = [record for record in read(path) if not record.is_drawn]
    assert {record.problem_id for record in failed} == {BAD_ROW}
    assert all("use --dtype bfloat16" in (record.error or "") for record in failed)
    run_job(configure(model, dtype="bfloat16"), tmp_path / "b.jsonl")
    assert all(record.is_drawn for record in read(tmp_path / "b.jsonl"))


def test_a_float16_that_always_overflows_is_told_at_load(
    configure: Any, whole: Path, tmp_path: Path
) -> None:
    model = broken(whole, tmp_path / "broken", all_too_large)
    with pytest.raises(ModelError) as error:
        run_job(configure(model, dtype="float16"), tmp_path / "a.jsonl")
    assert str(error.value) == (
        f"model {model}: its logits are NaN or infinite: float16 holds no number above 65,504: use "
        "--dtype bfloat16"
    )


def test_a_job_of_which_nothing_came_fails(configure: Any, whole: Path, tmp_path: Path) -> None:
    """And its journal, in which nothing is lost, starts anew under another configuration."""

    def begin_of_text(weights: dict[str, Any], _: list[int]) -> None:
        weights[EMBEDDING][1] = torch.nan

    path = tmp_path / "a.jsonl"
    model = broken(whole, tmp_path / "broken", begin_of_text)
    for _ in range(2):  # the second time from the journal alone
        with pytest.raises(ModelError, match="every sample failed: problem 0, sample 0: the model"):
            run_job(configure(model), path)
    assert len(records(path)) == len(ROWS) * SAMPLES
    run_job(configure(whole), path)
    assert all(record.is_drawn for record in read(path))
    with pytest.raises(JournalError, match="comes from another configuration"):
        run_job(configure(model), path)
