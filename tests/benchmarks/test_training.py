"""GRPO steps that are measured, and log-probabilities that are compared."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from benchmarks.measurement import Difference, Measurement, Training
from benchmarks.tables.training import training_tables
from benchmarks.training.noise import Drawn, _between, masked, padded
from benchmarks.training.peer import extrapolated

needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl")

DRAWN = [Drawn([5, 6, 7], [1], [-1.0]), Drawn([8], [2, 3], [-1.0, -2.0])]


def test_prompts_are_padded_to_the_left_and_completions_to_the_right() -> None:
    ids, mask, longest = padded(DRAWN)
    assert ids.tolist() == [[5, 6, 7, 1, 0], [0, 0, 8, 2, 3]]
    assert mask.tolist() == [[1, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert longest == 2


def test_a_sequence_counts_as_masked_where_the_trainer_finds_it_much_likelier() -> None:
    own = [torch.tensor([-1.0]), torch.tensor([-0.5, -1.3])]  # exp(1.2) is 3.3
    assert masked(DRAWN, own, clip=3.0) == 1
    assert masked(DRAWN, own, clip=4.0) == 0


def test_as_many_tokens_are_compared_as_both_have() -> None:
    one, other = [torch.tensor([1.0, 2.0])], [torch.tensor([1.5, 2.0, 9.0])]
    found = _between("x", one, other, clip=1.6)
    assert found == Difference(what="x", mean=0.25, largest=0.5, sequences=1, masked=1)
    assert _between("x", one, other, clip=1.7).masked == 0  # exp(0.5) is 1.65


def test_the_table_leaves_out_what_was_not_measured() -> None:
    training = Training(
        steps=1, first_rollout_seconds=2.0, sequences=4, masked=0,
        differences=(Difference(what="rollout and trainer", mean=0.00124, largest=0.0621),),
    )  # fmt: skip
    row = Measurement.model_construct(
        shape="m", precision="bf16", workload=None, peers=(),
        numbers=type("N", (), {"tokens_per_second": 10.0, "weights_bytes": 1 << 30})(),
    )  # fmt: skip
    text = "\n".join(training_tables(row, training))
    assert (
        "| sequences that TRL would mask beside vLLM | 0 of 4 |" in text
        and "| the weights, GiB | 1.00 |" in text
    )
    assert "a later one" not in text and "most in use" not in text
    assert "| rollout and trainer | 0.00124 | 0.0621 |\n" in text


CONFIG = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 1100,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip


@needs_trl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_steps_over_random_weights(tmp_path: Path) -> None:
    from benchmarks.training.result import measurement
    from benchmarks.training.steps import TrainingSettings, measure

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked = TrainingSettings(
        str(tmp_path), prompts=2, length=8, samples=2, output=6, steps=2, batch=4, peer=0,
        device="cpu", fp32_head=True, second_engine=True, options={"kv_cache_memory": 1 << 22},
    )  # fmt: skip
    found = measurement(asked, measure(asked), "python -m benchmarks training x", "1234567", True)
    training = found.numbers.training
    assert training is not None and (training.steps, training.sequences) == (2, 8)
    assert found.numbers.tokens == 24  # of the later step, to the last token
    assert training.masked == 0
    by_name = {each.what: each for each in training.differences}
    assert 0 <= by_name["rollout and trainer"].mean < 0.05
    assert len(by_name) == 4  # a head in float32 leaves no module that is so throughout


@needs_trl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_float32_module_under_autocast_is_compared_with_itself_without(tmp_path: Path) -> None:
    from benchmarks.training.result import measurement
    from benchmarks.training.steps import TrainingSettings, measure

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked = TrainingSettings(
        str(tmp_path), prompts=2, length=8, samples=2, output=6, steps=1, batch=4, peer=0,
        device="cpu", autocast=True, options={"kv_cache_memory": 1 << 22},
    )  # fmt: skip
    found = measurement(asked, measure(asked), "python -m benchmarks training x", "1234567", True)
    assert (found.row or "").endswith("-autocast") and found.note
    training = found.numbers.training
    assert training is not None
    apart = {each.what: each.mean for each in training.differences}
    assert 1e-5 < apart["trainer and float32"] < 0.05  # it does compute in bfloat16
    assert apart["rollout and trainer"] < 0.05


def test_a_peer_that_drew_less_is_taken_on_at_its_last_pace() -> None:
    times = [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]  # all have a token at 2.0, then 3 tokens in 2 s
    assert extrapolated(times, 3) == 4.0
    assert extrapolated(times, 6) == pytest.approx(2.0 + 9 * 2 / 3)
    assert extrapolated([[1.0], [2.0]], 1) == 2.0
