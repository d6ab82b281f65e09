"""The comparison with generate(): that it runs, and that it compares like with like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sharegen.bench.generate import _calls, _generate, bench_generate
from sharegen.cli import main
from sharegen.common.cores import available_cores
from sharegen.errors import UsageError
from tests.engine.tiny_models import make_tiny
from tests.tiny import save_tiny_model

SMALL = [
    "--problems",
    "3",
    "-n",
    "4",
    "--max-tokens",
    "6",
    "--limit-batches",
    "1",
    "--workers",
    "1",
]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "generate", *arguments])
    captured = capsys.readouterr()
    assert exit.value.code == 0, captured.err
    [line] = captured.out.splitlines()
    return json.loads(line), captured.err


@pytest.mark.slow
def test_the_bundled_model(capsys: pytest.CaptureFixture[str]) -> None:
    result, table = run([*SMALL, "--batch", "2", "--batch", "4"], capsys)
    assert (result["problems"], result["samples"], result["max_tokens"]) == (3, 4, 6)
    assert set(result["generate_tokens_per_second"]) == {"2", "4"}
    best = max(result["generate_tokens_per_second"].values())
    assert result["ratio"] == pytest.approx(result["sharegen_tokens_per_second"] / best, rel=0.01)
    assert result["generate_tokens_per_second"][str(result["best_batch"])] == best
    # Eight examples and three questions once, not twelve times.
    assert result["prompt_tokens_computed"] < result["prompt_tokens_asked"] / 8
    assert "generate(), 4 sequences" in table and "sharegen" in table


@pytest.mark.slow
def test_on_two_engines(capsys: pytest.CaptureFixture[str]) -> None:
    if available_cores() < 2:
        pytest.skip("one core has one engine")
    result, table = run([*SMALL[:-1], "2", "--batch", "4"], capsys)
    assert result["workers"] == 2 and "sharegen, 2 workers" in table
    assert result["prompt_tokens_asked"] > 8 * result["prompt_tokens_computed"] / 2 > 0


def test_another_model_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_model(tmp_path / "model", chat=False)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": f"{n} + 1?", "answer": f"#### {n + 1}"}) + "\n"
                for n in range(20))
    )  # fmt: skip
    arguments = ["--model", str(model), "--dataset", str(rows), "--few-shot-file", str(rows)]
    result, _ = run([*arguments, "--batch", "8", *SMALL], capsys)
    assert result["model"] == str(model) and result["ratio"] > 0


def test_every_sample_is_as_long_as_every_other() -> None:
    """Also where the model would have ended at once: both sides draw the same number of tokens."""
    model = make_tiny("llama").eval()
    with torch.no_grad():
        first = int(model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].argmax())
    model.generation_config.eos_token_id = first
    assert _generate(model, [[5, 6, 7], [9]], 3, 11, 0.01) == 2 * 3 * 11
    assert model.generation_config.eos_token_id == first


def test_calls_cover_the_job() -> None:
    prompts = [[1] * n for n in range(1, 8)]
    for samples in (1, 3, 5, 20):
        for batch in (1, 4, 5, 20, 320):
            drawn = {id(prompt): 0 for prompt in prompts}
            for part, each in _calls(prompts, samples, batch):
                assert len(part) * each <= batch
                for prompt in part:
                    drawn[id(prompt)] += each
            assert set(drawn.values()) == {samples}


def test_more_problems_than_there_are() -> None:
    with pytest.raises(UsageError, match=r"--problems 201: the dataset has only 200"):
        bench_generate(problems=201)
