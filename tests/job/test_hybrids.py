"""Jobs of models whose layers keep states: what a journal has depends on no interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharegen.job.interrupt import Interrupted
from sharegen.job.run_job import run_job
from tests.engine.tiny_models import HYBRIDS, TINY, tiny_config
from tests.job.test_stop_when import Stop, configure, drawn, offline, what_counts
from tests.tiny import tiny_tokenizer

NAMES = sorted({"lfm2", "qwen3_5"} & set(HYBRIDS) & set(TINY))


@pytest.fixture(params=NAMES)
def hybrid(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """A folder like `folder`, with a model that keeps states."""
    for name in ("rows", "examples"):
        (tmp_path / f"{name}.jsonl").write_bytes((folder / f"{name}.jsonl").read_bytes())
    tokenizer = tiny_tokenizer()
    config = tiny_config(request.param)
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 512
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


def run_in_pieces(folder: Path, path: Path, rule: str | None, **machine: Any) -> None:
    """A job that is interrupted twice, after a few samples of each run."""
    for samples in (3, 8):
        with pytest.raises(Interrupted):
            run_job(configure(folder, rule, **machine), path, watcher=Stop(samples))
    run_job(configure(folder, rule, **machine), path)


@pytest.mark.slow
def test_a_job_goes_on_where_it_was_interrupted(hybrid: Path) -> None:
    """To the bit, with rows and slots few or many; and so does one that cancels samples."""
    full = hybrid / "full.jsonl"
    run_job(configure(hybrid), full)
    every = drawn(full)
    run_in_pieces(hybrid, hybrid / "pieces.jsonl", None, max_sequences=5)
    assert drawn(hybrid / "pieces.jsonl") == every
    stopped = hybrid / "stopped.jsonl"
    run_in_pieces(hybrid, stopped, "decided", max_sequences=7)
    decisions, records = what_counts(stopped)
    assert decisions == offline(full, "decided") and len(drawn(stopped)) < len(every)
    assert all(every[key] == record for key, record in records.items())
