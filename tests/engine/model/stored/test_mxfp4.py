"""gpt-oss as it is published, in MXFP4: exact as numbers, exact in FP8 where exponents allow it."""

from __future__ import annotations

import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import AutoModelForCausalLM, Mxfp4Config, PreTrainedModel

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import load_weights
from sharegen.engine.model.fp8 import quantising
from sharegen.engine.model.fp8.products import E4M3, EMULATE
from sharegen.engine.model.load import load_model
from sharegen.engine.model.stored import dequantised
from sharegen.engine.model.stored.unread import Stored
from sharegen.errors import ModelError
from tests.engine.jobs import GREEDY, forest, make_engine, requests_of, run
from tests.engine.model.stored.packers import Tensors, mxfp4, plain, rewrite
from tests.engine.tiny_models import tiny_config

SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
EXPERTS = ("experts.gate_up_proj", "experts.down_proj")


def save(folder: Path, spread: int = 3, layers: int = 2, size: int = 64) -> PreTrainedModel:
    """A tiny gpt-oss whose experts are in MXFP4, and what it is worth.

    spread: how far apart the exponents of a row's groups are; size: of hidden states and experts.
    """
    config = tiny_config("gpt_oss")
    config.num_hidden_layers = layers
    config.layer_types = (config.layer_types * layers)[:layers]
    config.hidden_size = config.intermediate_size = size
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    worth: Tensors = {}

    def change(tensors: Tensors) -> Tensors:
        for name in [name for name in tensors if name.endswith(EXPERTS)]:
            parts, worth[name] = mxfp4(tensors.pop(name), spread)
            tensors |= {name + part: stored for part, stored in parts.items()}
        return tensors

    rewrite(folder, SETTINGS, change)
    return plain(folder, worth)


def read(folder: Path, **options: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = load_model(folder, device="cpu", **options)
    own = [str(warning.message) for warning in said if "sharegen" in warning.filename]
    return loaded, own


def test_numbers_are_exact_and_those_of_transformers(tmp_path: Path) -> None:
    expected = dict(save(tmp_path).named_parameters())
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.bfloat16
    )
    loaded, said = read(tmp_path, dtype="bfloat16")
    assert said == [f"model {tmp_path}: MXFP4, dequantised to bfloat16 while read"]
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, theirs.get_parameter(name)), name
        if name.endswith(EXPERTS):
            assert torch.equal(weight.float(), expected[name]), name  # bfloat16 has them all


def test_greedy_tokens_are_those_of_the_same_numbers(tmp_path: Path) -> None:
    own = save(tmp_path)
    loaded, _ = read(tmp_path)
    own.generation_config.eos_token_id = None
    prompts = forest()[:3]
    tokens = run(make_engine(loaded, block_size=4), requests_of(prompts, GREEDY)).tokens
    for index, prompt in enumerate(prompts):
        whole = own.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)
        assert tokens[index, 0] == whole[0, len(prompt) :].tolist()


@pytest.mark.turn(3)
@pytest.mark.parametrize(("spread", "is_exact"), [(3, True), (11, True), (20, False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_holds_the_numbers_where_exponents_allow_it(
    spread: int, is_exact: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    expected = dict(save(tmp_path, spread).named_parameters())
    loaded, said = read(tmp_path, quantization="fp8", dtype=dtype)
    found = dict(loaded.model.named_parameters())
    same = []
    for name in (name for name in found if name.endswith(EXPERTS)):
        assert found[name].dtype is E4M3
        scales = found[f"{name}_scale"]
        assert torch.equal(scales.log2(), scales.log2().round())
        wide = (found[name].float() * scales).transpose(-2, -1)
        same += [(wide == expected[name]).all(-2).flatten()]
    rows = torch.cat(same)
    told = [line for line in said if "are rounded" in line]
    assert bool(rows.all()) is is_exact
    count = int((~rows).sum())
    assert told == (
        [] if is_exact else [
            f"model {tmp_path}: {count:,} of {len(rows):,} rows of MXFP4 have exponents further "
            "apart than FP8's: their smallest numbers are rounded"
        ]
    )  # fmt: skip


def test_a_piece_of_a_weight_is_wide_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from files at a time is a few rows of one weight, however large that is."""
    save(tmp_path)
    pieces: list[int] = []
    whole = Stored.fill

    def fill(stored: Stored, out: torch.Tensor, start: Any) -> None:
        if stored.name.endswith("_blocks"):
            pieces.append(out.numel())
        whole(stored, out, start)

    monkeypatch.setattr(Stored, "fill", fill)
    monkeypatch.setattr(dequantised, "_PIECE", 8 * 64)
    read(tmp_path)
    assert max(pieces) == 8 * 32  # of 8 rows, two numbers a byte


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    name = "model.layers.0.mlp.experts.down_proj"

    def told() -> str:
        with pytest.raises(ModelError) as error:
            read(tmp_path)
        return str(error.value)

    def no_number(tensors: Tensors) -> Tensors:
        tensors[f"{name}_scales"][0, 0, 0] = 255
        return tensors

    rewrite(tmp_path, SETTINGS, no_number)
    assert f"{name}_scales holds a scale that is no number" in told()

    def too_few(tensors: Tensors) -> Tensors:
        tensors[f"{name}_scales"] = tensors[f"{name}_scales"][:, 1:]
        return tensors

    rewrite(tmp_path, SETTINGS, too_few)
    assert f"{name}_scales is [4, 63, 2] and should be [4, 64, 2]" in told()

    def none(tensors: Tensors) -> Tensors:
        del tensors[f"{name}_scales"]
        return tensors

    rewrite(tmp_path, SETTINGS, none)
    assert f"{name}_blocks is quantised, and what it is scaled by is missing" in told()


class Meter(TorchDispatchMode):
    """Counts the bytes of all tensors that are there at a time, and the most of them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._count, out)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        if type(tensor) is not torch.Tensor or tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.mark.turn(4)
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_memory_holds_the_result_and_one_layer(
    quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EMULATE, "1")
    save(tmp_path, layers=6)
    for module in (dequantised, quantising):  # pieces as small beside the model as usual
        monkeypatch.setattr(module, "_PIECE", 2**10)
    source = locate(tmp_path)
    config = load_config(source)
    with warnings.catch_warnings(), Meter() as meter:
        warnings.simplefilter("ignore")
        model = load_weights(source, config, torch.bfloat16, torch.device("cpu"), quantization)
    result = sum(weight.nbytes for weight in model.parameters())
    layer = sum(weight.numel() * 2 for weight in model.model.layers[0].mlp.experts.parameters())
    assert 0.9 * result < meter.most < result + layer
