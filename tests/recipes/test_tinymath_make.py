"""The script that makes tinymath, and the model that it made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

import sharegen.recipes.tinymath.make as making
from sharegen.recipes.tinymath.evaluate import SAMPLES, Score, score
from sharegen.recipes.tinymath.make import Look, Trainer, choose
from sharegen.recipes.tinymath.problems import held_out, training_examples

MODEL = Path(making.__file__).parent / "model"
made = pytest.mark.skipif(not MODEL.exists(), reason="the model has not been made yet")


def look(step: int, single: float, vote: float) -> Look:
    return Look(step, 1.0, Score(0.8, 200, SAMPLES, 1.0, single, vote))


def test_choose_takes_the_best_vote_among_those_worth_voting_on():
    looks = [look(1, 0.2, 0.6), look(2, 0.5, 0.7), look(3, 0.6, 0.78), look(4, 0.9, 0.95)]
    assert choose(looks).step == 3


def test_choose_falls_back_to_the_largest_gain():
    assert choose([look(1, 0.5, 0.6), look(2, 0.6, 0.72), look(3, 0.9, 1.0)]).step == 2


def test_choose_falls_back_to_the_nearest_accuracy():
    assert choose([look(1, 0.1, 0.1), look(2, 0.3, 0.4), look(3, 0.95, 1.0)]).step == 2


@pytest.fixture
def small_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )


def test_training_lowers_the_loss_the_same_way_each_time(small_config):
    rows = np.random.default_rng(0).integers(3, 32, (4, 24)).astype(np.uint16)
    rows[1, 12:] = 2
    in_answer = np.ones_like(rows, dtype=bool)
    runs = []
    for _ in range(2):
        trainer = Trainer(small_config, 12, "cpu")
        runs.append([trainer.step(rows, in_answer).item() for _ in range(12)])
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0] - 0.1


def test_what_follows_the_end_of_a_row_does_not_change_the_loss(small_config):
    rows = np.random.default_rng(1).integers(3, 32, (2, 24)).astype(np.uint16)
    rows[:, 20:] = 2
    answers = np.ones_like(rows, dtype=bool)
    longer = np.concatenate([rows, np.full((2, 8), 2, np.uint16)], axis=1)
    losses = [
        Trainer(small_config, 1, "cpu").step(r, np.resize(answers, r.shape)).item()
        for r in (rows, longer)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_the_last_batch_of_a_training_has_a_small_learning_rate(small_config):
    trainer = Trainer(small_config, 10, "cpu")
    rates = []
    for _ in range(10):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.step(np.full((1, 8), 5, np.uint16), np.ones((1, 8), dtype=bool))
    assert max(rates) == pytest.approx(making.LEARNING_RATE * 0.9, rel=0.2)
    assert rates[-1] == pytest.approx(making.LEARNING_RATE / 2)


@made
def test_the_model_is_small_and_loads_from_its_folder():
    assert (MODEL / "model.safetensors").stat().st_size <= 12_000_000
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert model.config.model_type == "llama"
    assert model.dtype == torch.bfloat16
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer("x").input_ids[0] == tokenizer.bos_token_id


@made
def test_the_scores_that_the_model_came_with_are_worth_voting_on():
    scores = json.loads((MODEL.parent / "scores.json").read_text())
    chosen = scores["chosen"]["score"]["temperature"]
    (test,) = [s for s in scores["test"] if s["temperature"] == chosen]
    assert test["problems"] == 200
    assert 0.35 <= test["single"] <= 0.80
    assert test["vote"] - test["single"] >= 0.10


@pytest.mark.slow
@made
def test_the_model_answers_in_the_format_of_its_examples():
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    examples = training_examples()[: making.FEW_SHOT]
    result = score(model, tokenizer, examples, held_out()[:1], temperature=0.7, seed=0)
    assert result.answered > 0.9


@pytest.mark.slow
@pytest.mark.turn(10)
def test_the_script_makes_everything_bundled(tmp_path):
    tar = tmp_path / "tinymath.tar"
    out = tmp_path / "out"
    making.make(out, tar, steps=1, rows=1, problems=1, workers=1, device="cpu")
    assert tar.stat().st_size > 8_000_000
    assert json.loads((out / "scores.json").read_text())["chosen"]["step"] == 1
    AutoModelForCausalLM.from_pretrained(out / "model")
    for split in ("train", "test"):
        shipped = Path(making.__file__).parent / f"{split}.jsonl"
        assert (out / f"{split}.jsonl").read_bytes() == shipped.read_bytes()
