"""The folder of a random model, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, Mxfp4Config

from benchmarks.commands import app
from benchmarks.random_model import save_random_model
from sharegen import LLM, SamplingParams
from sharegen.bench.shapes import random_model
from sharegen.cli import main
from sharegen.engine.model.fp8.blocks import widened
from tests.engine.tiny_models import tiny_config


@pytest.fixture
def shape(tmp_path: Path) -> str:
    """A small model whose vocabulary has ids that the tokenizer does not know."""
    config = tiny_config("llama")
    config.vocab_size = 1500
    config.save_pretrained(tmp_path / "shape")
    return str(tmp_path / "shape")


@pytest.mark.turn(3)
@pytest.mark.parametrize("eos", [1, 300, 1500])
def test_a_random_model_ends_as_often_as_asked(shape: str, eos: int, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    save_random_model(shape, folder, eos, torch.device("cpu"))
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


@pytest.mark.slow
def test_experts_are_in_mxfp4_as_gpt_oss_is_published(tmp_path: Path) -> None:
    config = tiny_config("gpt_oss")
    config.vocab_size, config.hidden_size, config.intermediate_size = 1500, 64, 96
    config.save_pretrained(tmp_path / "shape")
    folder = tmp_path / "model"
    save_random_model(str(tmp_path / "shape"), folder, 1, torch.device("cpu"), "mxfp4")
    with LLM(folder) as llm:
        [output] = llm.generate(["2 + 3 ="], SamplingParams(temperature=0, max_tokens=8))
    [sample] = output.outputs
    prompt = torch.tensor([output.prompt_token_ids])
    plain = Mxfp4Config(dequantize=True)
    module = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=plain, dtype=torch.float32
    )
    meant = module.generate(prompt, do_sample=False, max_new_tokens=8, min_new_tokens=8)
    assert sample.token_ids == meant[0, prompt.shape[1] :].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe"])
def test_layers_are_in_blocks_as_qwen3_fp8_is_published(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(name)
    config.vocab_size, config.hidden_size, config.intermediate_size = 1500, 256, 384
    config.moe_intermediate_size = 128
    config.save_pretrained(tmp_path / "shape")
    folder = tmp_path / "model"
    save_random_model(str(tmp_path / "shape"), folder, 1, torch.device("cpu"), "fp8-blocks")
    stored = load_file(folder / "model.safetensors")
    scales = [key for key in stored if key.endswith("_scale_inv")]
    assert scales and all(
        stored[key.removesuffix("_scale_inv")].dtype is torch.float8_e4m3fn for key in scales
    )
    made = dict(
        random_model(str(tmp_path / "shape"), torch.device("cpu"), torch.bfloat16).state_dict()
    )
    for key in [key for key in made if key.endswith(".experts.down_proj")]:  # one tensor for all
        of_each = enumerate(made[key])
        made |= {key.replace("down", f"{i}.down") + ".weight": each for i, each in of_each}
    for key in stored.keys() & made.keys():
        scale, own = stored.get(f"{key}_scale_inv"), made[key].float()
        found = stored[key].float() if scale is None else widened(stored[key], scale)
        # Half of e4m3's smallest number, and what float32 rounds beside it.
        least = 0.0 if scale is None else scale.max() * 2.0**-10 * (1 + 2.0**-20)
        assert ((found - own).abs() <= (own.abs() / 16).clamp(min=least)).all()
    assert any(f"{key}_scale_inv" in stored for key in made)
    monkeypatch.setenv("SHAREGEN_EMULATE_FP8", "1")
    for quantization in (None, "fp8-blocks"):
        with LLM(folder, dtype="float32", quantization=quantization) as llm:
            [output] = llm.generate(["2 + 3 ="], SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere", "new"], "'nowhere' is neither one of"),
        (["llama3-8b", "new", "--eos", "0"], "--eos 0: it must be from 1 to the vocabulary's 128,"),
        (["llama3-8b", "new", "--eos", "128257"], "--eos 128257"),
        (["llama3-8b", "new", "--device", "foo"], "unknown device 'foo'"),
        (["llama3-8b", "."], "name a new one"),
        (["small", "new"], "a vocabulary of 128"),
        (["llama3-8b", "new", "--stored", "mxfp4"], "shape 'llama3-8b' is not gpt-oss"),
        (["llama3-8b", "new", "--stored", "int3"], "--stored int3: it must be mxfp4 or fp8-blo"),
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
        main(["random-model", *arguments], app)
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("sharegen: error: ") and why in err
    assert not Path("new").exists()
