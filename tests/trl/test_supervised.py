"""Right samples of a model train it: from the job through `convert` to TRL's SFTTrainer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from sharegen.cli import main

BUNDLED = Path(__file__).parents[2] / "recipes" / "tinymath" / "model"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl"),
    pytest.mark.usefixtures("brief_collections"),  # trainers ask for them
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


def sharegen(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.mark.slow
def test_right_samples_train_the_model_that_drew_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    monkeypatch.chdir(tmp_path)
    job = ("run", "self-consistency", "--dataset", "tinymath", "--few-shot", "0", "--limit", "8")
    sharegen(*job, "--split", "train", "-n", "8", "--stop-when", "right=2", "-o", "samples.jsonl")
    kept = ("--format", "sft", "--only-right", "--per-problem", "2", "-o", "train.jsonl")
    sharegen("convert", "samples.jsonl", *kept)
    lines = [json.loads(line) for line in Path("train.jsonl").read_text().splitlines()]
    assert 8 <= len(lines) <= 16 and set(lines[0]) == {"prompt", "completion"}

    tokenizer = AutoTokenizer.from_pretrained(BUNDLED)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32),
        args=SFTConfig(
            output_dir="trained", per_device_train_batch_size=8, max_steps=4, learning_rate=1e-4,
            use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_steps=1,
        ),
        train_dataset=load_dataset("json", data_files="train.jsonl", split="train"),
        processing_class=tokenizer,
    )  # fmt: skip
    trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    assert losses[-1] < losses[0]
    row = trainer.train_dataset[0]
    assert tokenizer.decode(row["input_ids"]) == (
        tokenizer.bos_token + lines[0]["prompt"] + lines[0]["completion"] + tokenizer.eos_token
    )
    trainer.save_model()

    sharegen(*job, "--model", "trained", "-n", "2", "-o", "after.jsonl")
    after = [json.loads(line) for line in Path("after.jsonl").read_text().splitlines()]
    assert len(after) == 16
