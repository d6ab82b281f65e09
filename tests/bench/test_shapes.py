"""Shapes and workloads: what is refused, and the folder of a random model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from sharegen import LLM, SamplingParams
from sharegen.bench.shapes import WORKLOADS, Workload, main, workload
from sharegen.errors import UsageError
from tests.engine.tiny_models import tiny_config


def test_workloads() -> None:
    assert workload("gsm8k") is WORKLOADS["gsm8k"]
    assert workload("0,1,2,3,1") == Workload(0, 1, 2, 3, 1)
    assert workload("5,0,1,1,1").prompts(8) == [workload("5,9,1,1,1").prompts(8)[0][:5]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gsm9k", "neither one of gsm8k, "),
        ("5,5,1,1", "nor five whole numbers"),
        ("5,5,1,1,1,1", "nor five whole numbers"),
        ("-1,5,1,1,1", "PREFIX is -1: it must be at least 0"),
        ("5,-1,1,1,1", "PROBLEM is -1: it must be at least 0"),
        ("5,5,0,1,1", "PROBLEMS is 0: it must be at least 1"),
        ("5,5,1,0,1", "SAMPLES is 0: it must be at least 1"),
        ("5,5,1,1,0", "OUTPUT is 0: it must be at least 1"),
        ("0,0,1,1,4", "PREFIX and PROBLEM are 0"),
    ],
)
def test_refuses_a_workload(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        workload(text)
    assert repr(text) in str(refused.value) and why in str(refused.value)


@pytest.fixture
def shape(tmp_path: Path) -> str:
    """A small model whose vocabulary has ids that the tokenizer does not know."""
    config = tiny_config("llama")
    config.vocab_size = 1500
    config.save_pretrained(tmp_path / "shape")
    return str(tmp_path / "shape")


@pytest.mark.parametrize("eos", [1, 300, 1500])
def test_a_random_model_ends_as_often_as_asked(shape: str, eos: int, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    main([shape, str(folder), "--eos", str(eos), "--device", "cpu"])
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    assert len(set(ends)) == eos and min(ends) >= 0 and max(ends) < 1500
    assert AutoTokenizer.from_pretrained(folder).eos_token_id in ends
    assert all(b - a <= -(-1500 // eos) for a, b in pairwise(ends))
    with LLM(folder) as llm:
        [output] = llm.generate(["2 + 3 ="], SamplingParams(n=40, max_tokens=8))
    ended = sum(sample.ended_by == "eos" for sample in output.outputs)
    if eos == 300:  # one step in five
        assert 20 < ended < 40
    else:
        assert ended == (0 if eos == 1 else 40)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere", "new"], "'nowhere' is neither one of"),
        (["llama3-8b", "new", "--eos", "0"], "--eos 0: it must be from 1 to the vocabulary's 128,"),
        (["llama3-8b", "new", "--eos", "128257"], "--eos 128257"),
        (["llama3-8b", "new", "--device", "foo"], "unknown device 'foo'"),
        (["llama3-8b", "."], "name a new one"),
        (["small", "new"], "a vocabulary of 128"),
    ],
)
def test_refuses_to_write_a_model(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_config("llama").save_pretrained("small")
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("sharegen: error: ") and why in err
    assert not Path("new").exists()
