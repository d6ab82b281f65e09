"""What a model that does not compile says, and how it is left."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.compile import compiling, stacking
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.tiny_models import TINY, make_tiny, tiny_config

# Of rows, or of sequences and their tokens: there Dynamo takes one token, and one sequence, apart.
GRAPHS_OF_NORMS = [
    ("qwen3_5", 1),
    *(pytest.param(*line, marks=pytest.mark.slow)
      for line in (("qwen3_next", 1), ("olmo_hybrid", 1), ("bamba", 2), ("zamba2", 2))),
]  # fmt: skip
NEEDS_HYBRIDS = pytest.mark.skipif(
    "qwen3_5" not in TINY, reason="this transformers hands no states over"
)


def test_a_model_that_does_not_compile_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler here\nand a page about it")

    monkeypatch.setattr(LoadedModel, "trial_forward", fail)
    loaded = load_model(make_tiny("llama"))
    with pytest.warns(UserWarning, match="^the model runs uncompiled: no compiler here$"):
        compiling.optimise(loaded)
    assert type(query_projection(loaded)) is nn.Linear
    assert all(module._compiled_call_impl is None for module in loaded.model.modules())


@pytest.mark.slow
def test_a_model_without_layers_to_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one with code of its own may be."""
    monkeypatch.setattr(stacking, "GradientCheckpointingLayer", type(None))
    loaded = load_model(make_tiny("llama"))
    with pytest.warns(UserWarning, match="the model runs uncompiled: no layer of it"):
        compiling.optimise(loaded)
    assert type(query_projection(loaded)) is not nn.Linear  # fused all the same
    loaded.release()
    assert type(query_projection(loaded)) is nn.Linear


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
def test_every_layer_may_be_a_kind_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """More kinds than Dynamo compiles of one function, and as many again in the next model."""
    monkeypatch.setattr(compiling, "_PER_MODULE", 2)
    first = [nn.ReLU, nn.GELU, nn.SiLU]
    second = [nn.Mish, nn.SELU, nn.Tanh]
    torch.compiler.reset()
    models = []
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        for kinds in (first, second):
            config = tiny_config("llama")
            config.num_hidden_layers = len(kinds)
            module = AutoModelForCausalLM.from_config(config)
            for layer, kind in zip(module.model.layers, kinds, strict=True):
                layer.mlp.act_fn = kind()
            models.append(load_model(module))
            compiling.optimise(models[-1])
            assert module.model.layers[-1]._compiled_call_impl is not None
    for loaded in models:
        loaded.release()


@pytest.mark.turn(4)
@NEEDS_HYBRIDS
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize(("name", "graphs"), GRAPHS_OF_NORMS)
def test_norms_of_mixers_are_compiled_for_any_number_of_rows(name: str, graphs: int) -> None:
    loaded = load_model(make_tiny(name))
    [norm, *others] = norms_of(loaded)
    expected = {rows: loaded.trial_forward(rows, rows) for rows in (2, 3, 64, 67)}
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    assert compiling._compile(loaded, [norm, *others]) is None
    for rows, logits in expected.items():
        assert torch.equal(loaded.trial_forward(rows, rows), logits)
        loaded.trial_forward(rows, 1)
    assert counters["stats"]["unique_graphs"] - before == graphs
    assert norm._compiled_call_impl is not None
    loaded.release()
    assert all(module._compiled_call_impl is None for module in loaded.model.modules())


@NEEDS_HYBRIDS
@pytest.mark.usefixtures("dynamo_alone")
def test_layers_are_compiled_beside_norms_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model(make_tiny("mamba2"))
    [norm, *_] = norms_of(loaded)

    def forward(norm: nn.Module, hidden: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break("no compiler here")
        return hidden

    monkeypatch.setattr(type(norm), "forward", forward)
    with pytest.warns(UserWarning, match="^norms run uncompiled: "):
        compiling.optimise(loaded)
    compiled = [m for m in loaded.model.modules() if m._compiled_call_impl is not None]
    assert compiled and all(isinstance(m, GradientCheckpointingLayer) for m in compiled)
    loaded.release()
    assert all(module._compiled_call_impl is None for module in loaded.model.modules())


def test_modules_of_packages_and_of_other_shapes_are_no_norms() -> None:
    """In a mixer of this file, which stands for a model's."""
    mixer = Norm(3)
    mixer.parts = nn.ModuleList([
        Norm(3), nn.LayerNorm(3), nn.SiLU(), nn.Linear(3, 3), nn.Conv1d(3, 3, 2),
    ])  # fmt: skip
    assert list(compiling._norms(mixer)) == [mixer.parts[0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_prefill_of_one_token_compiles_nothing() -> None:
    """The rest of a prompt that is one longer than a prefill batch."""
    loaded = load_model(make_tiny("mistral").to("cuda"))
    memory = 400 * 16 * loaded.kv_bytes_per_token
    config = EngineConfig(max_sequences=16, kv_cache_memory=memory, prefill_tokens=32)
    engine = Engine(loaded, None, config)
    before = counters["stats"]["unique_graphs"]
    assert before > 0
    list(engine.generate([Request(0, range(3, 36), SamplingParams(max_tokens=3), range(2))]))
    assert counters["stats"]["unique_graphs"] == before
    engine.close()


class Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def norms_of(loaded: LoadedModel) -> list[nn.Module]:
    return [norm for mixer in loaded.mixers for norm in compiling._norms(mixer.module)]


def query_projection(loaded: LoadedModel) -> nn.Module:
    return loaded.model.get_submodule("model.layers.0.self_attn.q_proj")
