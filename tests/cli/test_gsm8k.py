"""The main job on GSM8K's own rows with a model that is not ours: run, continued, voted."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2ForCausalLM

from sharegen.results.journal.journal import read
from tests.cli.conftest import ROWS, Command, write_jsonl

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return some_rows(DATA / "gsm8k_test.jsonl", tmp_path / "test.jsonl", 6)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    return some_rows(DATA / "gsm8k_train.jsonl", tmp_path / "train.jsonl", 40)


def some_rows(source: Path, target: Path, count: int) -> Path:
    """GSM8K's first rows where they are, else rows like them, which no other file has."""
    if source.is_file():
        target.write_text("".join(source.read_text().splitlines(keepends=True)[:count]))
        return target
    own = [
        row | {"question": f"Of {target.stem}, {index}. {row['question']}"}
        for index, row in zip(range(count), cycle(ROWS), strict=False)
    ]
    return write_jsonl(target, own)


@pytest.fixture
def qwen(tmp_path: Path, examples: Path) -> Path:
    """A random Qwen2 that ends a text by its own tokenizer's token and begins it with none.

    "#### 7" is one token of few, so that a random sample has answers to vote on.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(examples.read_text().splitlines(), trainer)
    backend.add_tokens([f"#### {number}" for number in range(10)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=8192,
        eos_token_id=0, bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path / "qwen"
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_gsm8k_with_another_model(
    sharegen: Command, qwen: Path, questions: Path, examples: Path, tmp_path: Path
) -> None:
    job = ["run", "self-consistency", "--dataset", questions, "--few-shot-file", examples,
           "--model", qwen, "--max-tokens", 48, "--temperature", 1]  # fmt: skip
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    ran = sharegen(*job, "-n", 6, "-o", whole)
    assert ran.code == 0, ran.err
    assert "shared by all" in ran.err and "6 problems" in ran.err
    assert "accuracy, the vote" in ran.out
    golds = [json.loads(line)["answer"].rpartition("#### ")[2] for line in questions.open()]
    assert {r.problem_id: r.gold for r in read(whole)} == {str(i): g for i, g in enumerate(golds)}

    assert sharegen(*job, "-n", 2, "--limit", 3, "-o", part, "--max-sequences", 4).code == 0
    torn = part.read_bytes()[:-30]
    part.write_bytes(torn)
    assert sharegen(*job, "-n", 6, "-o", part, "--max-sequences", 9).code == 0
    assert sorted(part.read_bytes().splitlines()) == sorted(whole.read_bytes().splitlines())

    voted = sharegen("vote", part)
    assert voted.code == 0 and len(voted.out.splitlines()) >= 6
    answers = [r.answer for r in read(part) if r.answer is not None]
    assert any(answer.isdecimal() for answer in answers)  # what else is one, random texts decide
    shown = sharegen("show", part, "--problem", 2)
    assert shown.code == 0 and "sample 5" in shown.out and golds[2] in shown.out
    planned = sharegen("plan", *job[1:8], "-n", 6)
    assert planned.code == 0 and "6 x 6 = 36 completions" in planned.out
