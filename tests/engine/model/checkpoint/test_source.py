from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, TorchAoConfig

from sharegen.common import hub
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.engine.model.self_check import self_check
from sharegen.errors import ModelError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.tiny_models import make_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny("llama").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    hub.hub_is_reachable.cache_clear()
    yield
    hub.hub_is_reachable.cache_clear()


def message(*args: object, **options: object) -> str:
    with pytest.raises(ModelError) as error:
        load_model(*args, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unknown_folder_is_told_at_once() -> None:
    started = time.perf_counter()
    assert message("./no/such") == (
        "no folder ./no/such: give a model folder or a hub id like owner/name"
    )
    assert message("/no/such").startswith("no folder /no/such")
    assert message("what is this?") == (
        "'what is this?' is neither a folder nor a hub id: give a model folder or owner/name"
    )
    assert time.perf_counter() - started < 30


def test_a_file_is_not_a_model(folder: Path) -> None:
    file = folder / "config.json"
    assert message(file) == f"model {file} is a file: give the folder that holds config.json"


@pytest.mark.usefixtures("unreachable_hub")
def test_unreachable_hub_is_told_at_once() -> None:
    started = time.perf_counter()
    assert message("owner/name") == (
        "cannot load the config of owner/name: the hub (http://127.0.0.1:9) is not reachable and "
        "it is not in the local cache: give a model folder"
    )
    with pytest.raises(ModelError, match=r"the hub .* is not reachable"):
        load_tokenizer("owner/name")
    assert time.perf_counter() - started < 30


def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "ENDPOINT", "asked")
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: pytest.fail("asked the hub"))
    hub.hub_is_reachable.cache_clear()
    assert hub.hub_is_reachable() is False
    hub.hub_is_reachable.cache_clear()


def test_empty_folder(tmp_path: Path) -> None:
    assert message(tmp_path) == f"model folder {tmp_path} has no config.json"


def test_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert message(folder).startswith(f"cannot load the config of model folder {folder}: ")


def test_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "quokka"}))
    assert "quokka" in message(folder)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert message(folder).startswith(f"cannot load the weights of model folder {folder}: ")


@pytest.mark.parametrize("weights", [True, False])
def test_a_value_in_a_config_that_transformers_does_not_look_at(
    folder: Path, weights: bool
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 99_999}))
    with pytest.raises(
        ModelError, match=r"a value in .* be used \(AssertionError: Padding_idx must"
    ):
        load_model(folder, weights=weights)
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "foo"}))
    with pytest.raises(ModelError, match=r"'foo' is missing in one of .* or is a name that is not"):
        load_model(folder, weights=weights)


def test_torn_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert message(folder).startswith(f"cannot load the weights of model folder {folder}: ")


class _Runs:
    def __reduce__(self) -> object:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("kind", ["plain", "zip", "empty", "garbage"])
def test_weights_in_a_pickle_that_runs_code_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(folder)
    weights = folder / "pytorch_model.bin"
    (folder / "model.safetensors").unlink()
    content = {"empty": b"", "garbage": b"\x80\x02ccc"}
    if kind == "zip":
        torch.save({"x": _Runs()}, weights)
    else:
        weights.write_bytes(content.get(kind, pickle.dumps({"x": _Runs()})))
    with pytest.raises(
        ModelError, match=r"weights in a pickle.*save_pretrained.*safetensors"
    ) as told:
        load_model(folder)
    assert "\n" not in str(told.value) and not (folder / "ran").exists()


def test_weights_in_a_pickle_that_runs_nothing_are_read(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    load_model(folder)


def test_missing_weights_are_never_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert message(folder, device="cpu") == (
        f"model {folder}: 1 weights are missing or of another shape, such as "
        "model.layers.1.self_attn.q_proj.weight: the folder is incomplete or not of this "
        "architecture"
    )


def test_weights_of_another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros(64, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "lm_head.weight" in message(folder, device="cpu")


def quantise(folder: Path, **settings: object) -> None:
    """Say of the checkpoint that it is quantised."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("package", "settings", "named"),
    [
        ("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ("bitsandbytes", {"load_in_8bit": True}, "bitsandbytes"),
        ("compressed_tensors", {"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_quantised_checkpoint_without_its_package(
    folder: Path, package: str, settings: dict[str, object], named: str
) -> None:
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    quantise(folder, **settings)
    told = message(folder, device="cpu")
    assert told.startswith(f"cannot load the weights of model folder {folder}: ")
    assert "pip install" in told and named in told
    load_model(folder, device="cpu", weights=False)  # a plan needs none of it


def test_quantisation_that_nobody_knows_is_refused(folder: Path) -> None:
    """transformers would skip it: weights without their scales are numbers of no meaning."""
    quantise(folder, quant_method="quokka")
    assert message(folder, device="cpu") == (
        f"model {folder} is quantised by quokka, which transformers does not know: give a "
        "checkpoint that is not quantised, or quantised by a method that it has"
    )
    quantise(folder, bits=4)
    assert "has no `quant_method` attribute" in message(folder, device="cpu")


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("accelerate", "is quantised (torchao), and loading it needs accelerate: "),
        ("torchao", "it needs the package torchao: pip install torchao"),
    ],
)
@pytest.mark.slow
@pytest.mark.turn(2)
def test_packages_that_loading_quantised_weights_needs(
    folder: Path, missing: str, told: str
) -> None:
    """In a process of its own, in which nobody can import the package."""
    config = {"default": {"_type": "Int8WeightOnlyConfig", "_version": 1, "_data": {}}}
    quantise(folder, quant_method="torchao", quant_type=config)
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from sharegen.engine.model.load import load_model\n"
        f"load_model({str(folder)!r}, device='cpu')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 1
    error = ran.stderr.strip().splitlines()[-1]
    assert error.startswith("sharegen.errors.ModelError: ") and told in error


def test_quantised_checkpoint_decodes_as_generate_does(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    quantisation = pytest.importorskip("torchao.quantization")
    quantised = tmp_path_factory.mktemp("int8")
    AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=TorchAoConfig(quantisation.Int8WeightOnlyConfig()),
        dtype=torch.float32,
        device_map="cpu",
    ).save_pretrained(quantised)
    loaded = load_model(quantised, device="cpu")
    projection = loaded.model.get_submodule("model.layers.0.self_attn.q_proj")
    assert type(projection.weight).__module__.startswith("torchao")
    self_check(loaded, "int8")
    prompts = forest()[:6]
    tokens = run(make_engine(loaded, block_size=4), requests_of(prompts, GREEDY)).tokens
    loaded.release()
    loaded.model.generation_config.eos_token_id = None
    for index, prompt in enumerate(prompts):
        whole = loaded.model.generate(
            torch.tensor([prompt]), max_new_tokens=GREEDY.max_tokens, do_sample=False
        )
        assert tokens[index, 0] == whole[0, len(prompt) :].tolist()
    plan = load_model(quantised, device="cpu", weights=False)
    assert plan.layers == loaded.layers


def test_code_of_the_model_is_not_run_unless_asked_for(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "quokka"
    config["auto_map"] = {
        "AutoConfig": "quokka.QuokkaConfig",
        "AutoModelForCausalLM": "quokka.QuokkaForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "quokka.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class QuokkaConfig(LlamaConfig):\n    model_type = 'quokka'\n"
        "class QuokkaForCausalLM(LlamaForCausalLM):\n    config_class = QuokkaConfig\n"
    )
    assert message(folder) == (
        f"model {folder} brings its own code: read it, then allow it with --trust-remote-code"
    )
    loaded = load_model(folder, device="cpu", trust_remote_code=True)
    assert type(loaded.model).__name__ == "QuokkaForCausalLM"
