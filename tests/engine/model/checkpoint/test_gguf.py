"""GGUF files: the numbers, the tokenizer and the template that are in them, and broken ones."""

from __future__ import annotations

import shutil
import struct
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sharegen import LLM
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.model.checkpoint import gguf
from sharegen.engine.model.checkpoint.gguf import kinds_of, read_header, scale_positions
from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.fingerprint import fingerprint_of_place
from sharegen.engine.model.fp8.products import E4M3, EMULATE
from sharegen.engine.model.load import load_model
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError, UsageError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.model.checkpoint.gguf_files import write_tiny_gguf
from tests.engine.tiny_models import tiny_config

ROOT = Path(__file__).parents[4]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*dequantised to"),
    pytest.mark.skipif(not gguf.READS_GGUF, reason="needs transformers 5.23"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def message(file: Path, **options: object) -> str:
    with pytest.raises((ModelError, UsageError)) as error:
        load_model(file, device="cpu", **options)  # type: ignore[arg-type]
    told = str(error.value)
    assert "\n" not in told and str(file) in told
    return told


def test_an_earlier_transformers_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_gguf(file, GGMLQuantizationType.Q8_0)
    monkeypatch.setattr(gguf, "READS_GGUF", False)
    assert "needs transformers 5.23 or later: here is 5." in message(file)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "BF16"])
def test_the_numbers_are_those_in_the_file(file: Path, kind: str) -> None:
    model = write_tiny_gguf(file, GGMLQuantizationType[kind])
    with pytest.warns(UserWarning, match=rf"GGUF .{kind}, F\d+, F\d+.*dequantised to flo"):
        loaded = load_model(file, device="cpu")
    expected = dict(model.named_parameters())
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, expected[name]), name
    assert loaded.eos_token_ids == (2,)
    assert not hasattr(loaded.config, "quantization_config")


def test_more_layers_than_any_model_has(file: Path) -> None:
    """As one other bit in the file gives: transformers would make them all."""
    write_tiny_gguf(file)
    key, content = b"llama.block_count", file.read_bytes()
    at = content.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    file.write_bytes(content[:at] + struct.pack("<I", 524_290) + content[at + 4 :])
    with pytest.raises(ModelError, match=r"llama\.block_count is 524290: more than any model has"):
        load_model(file, device="cpu")


def test_greedy_tokens_are_those_of_transformers(file: Path) -> None:
    write_tiny_gguf(file)
    own = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager"
    )
    own.generation_config.eos_token_id = None
    engine = make_engine(load_model(file, device="cpu"), block_size=4)
    prompts = forest()[:4]
    tokens = run(engine, requests_of(prompts, GREEDY)).tokens
    for index, prompt in enumerate(prompts):
        whole = own.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert tokens[index, 0] == whole[0, len(prompt) :].tolist()


@pytest.mark.turn(4)
def test_tokenizer_and_template_are_those_in_the_file(file: Path) -> None:
    write_tiny_gguf(file)
    for name in ("tokenizer.json", "tokenizer_config.json"):  # of another model
        shutil.copy(ROOT / "recipes" / "tinymath" / "model" / name, file.parent)
    tokenizer = load_tokenizer(file)
    assert tokenizer.decode(tokenizer("cab a", add_special_tokens=False).input_ids) == "cab a"
    llm = LLM(str(file), device="cpu", block_size=4)
    turns = [{"role": "user", "content": "ab"}]
    [answer] = llm.chat(turns, SamplingParams(temperature=0, max_tokens=3))
    assert tokenizer.decode(answer.prompt_token_ids) == "<u>ab<a>"
    assert len(answer.outputs[0].token_ids) <= 3


def test_it_may_go_on_to_fp8(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")
    model = write_tiny_gguf(file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_model(file, device="cpu", quantization="fp8")
    assert any("and on to FP8 by rows" in str(warning.message) for warning in said)
    layer = loaded.model.get_submodule("model.layers.0.mlp.up_proj")
    assert layer.weight.dtype is E4M3
    stored = model.get_submodule("model.layers.0.mlp.up_proj").weight
    wide = layer.weight.float() * layer.weight_scale
    assert (wide - stored).abs().max() < stored.abs().max() / 16


def test_a_plan_and_an_identity_need_no_weights(file: Path) -> None:
    write_tiny_gguf(file)
    loaded = load_model(file, device="cpu", weights=False)
    assert loaded.fingerprint == fingerprint_of_place(file)
    moved = file.rename(file.with_name("moved.gguf"))
    assert fingerprint_of_place(moved) == loaded.fingerprint
    write_tiny_gguf(file, GGMLQuantizationType.Q4_1)
    assert fingerprint_of_place(file) != loaded.fingerprint
    assert kinds_of(file).startswith("Q4_1")


def test_positions_are_scaled_as_llama_3_does(file: Path) -> None:
    """transformers would leave it out: the file has factors, and not what they come from."""
    rope = {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = tiny_config("llama")
    config.rope_parameters = rope
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    factors = 5e5 ** (-torch.arange(0, 8, 2) / 8) / scaled
    write_tiny_gguf(file, factors=factors, theta=5e5)
    loaded = load_model(file, device="cpu", weights=False)
    assert loaded.config.rope_parameters == rope
    write_tiny_gguf(file, factors=factors * 1.5, theta=5e5)
    assert "scales its positions (factors of its own)" in message(file)
    write_tiny_gguf(file, factors=factors[:3], theta=5e5)
    assert "scales its positions (factors of its own)" in message(file)
    of_each_kind = {"rope_parameters": {"full_attention": rope, "sliding_attention": rope}}
    for other in ({}, {"rope_parameters": rope}, of_each_kind | {"head_dim": 8}):
        with pytest.raises(ModelError, match="scales its positions"):
            scale_positions(file, SimpleNamespace(**other))


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short(file: Path, share: float) -> None:
    write_tiny_gguf(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    assert "fetch it anew" in message(file)


def test_what_is_no_gguf_file(file: Path) -> None:
    file.write_bytes(b"")
    assert "is no GGUF file" in message(file)
    file.write_bytes(b"GGUF" + bytes([1]) + bytes(40))
    assert "GGUF of version 1" in message(file)
    file.write_bytes(b"GGUF" + bytes([3, 0, 0, 0]) + b"\xff" * 16)
    assert "it is broken" in message(file)
    file.unlink()
    assert message(file).startswith("no file ")
    write_tiny_gguf(file)
    assert "is of a model on the hub" in message(file, revision="main")


def test_a_file_goes_by_what_is_in_it_and_a_folder_names_it(file: Path) -> None:
    write_tiny_gguf(file)
    assert f"give the GGUF file itself, such as {file}" in message(file.parent)
    digest = file.rename(file.parent / "sha256-0f1e2d")
    source = locate(digest)
    assert source.gguf == digest
    assert load_config(source).model_type == "llama"
    assert load_tokenizer(digest)("a b")["input_ids"]


def test_what_of_a_file_cannot_be_run(file: Path) -> None:
    write_tiny_gguf(file, architecture="quokka")
    assert "architecture quokka is not supported" in message(file)
    write_tiny_gguf(file, without="blk.1.ffn_up.weight")
    assert "1 weights are missing" in message(file)
    write_tiny_gguf(file, llama__rope__scaling__type="yarn")
    assert "scales its positions (yarn)" in message(file)
    write_tiny_gguf(file, split__count=3)
    assert "is one of 3 files of a model: join them" in message(file)


def test_a_kind_that_nobody_knows(file: Path) -> None:
    write_tiny_gguf(file)
    name = read_header(file).tensors[0].name.encode()
    whole = bytearray(file.read_bytes())
    kind = whole.index(name) + len(name) + 4 + 2 * 8
    whole[kind] = 250
    file.write_bytes(whole)
    assert "is of ggml type 250, which is not known" in message(file)


def test_a_tokenizer_that_cannot_be_made(file: Path) -> None:
    write_tiny_gguf(file, tokenizer="quokka")
    with pytest.raises(ModelError, match=r"cannot load the (tokenizer|config) of GGUF file"):
        load_tokenizer(file)
    write_tiny_gguf(file, tokenizer="none")
    assert "has no tokenizer in it (tokenizer.ggml.model)" in message(file)
    with pytest.raises(ModelError, match="has no tokenizer in it"):
        load_tokenizer(file)


def test_it_is_not_cut(file: Path) -> None:
    write_tiny_gguf(file)
    ranks = Ranks(0, 2, torch.device("cpu"))
    assert "which several GPUs do not read" in message(file, ranks=ranks)
