"""The last layer, for the rows alone whose logits are wanted."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from sharegen.engine.model.compile import compiling
from sharegen.engine.model.compile import wanted_rows as choice
from sharegen.engine.model.compile.stacking import decoder_layers
from sharegen.engine.model.compile.wanted_rows import skip_unwanted_rows, wanted_rows
from sharegen.engine.model.interface import ValuesOnly, active
from sharegen.engine.model.load import load_model, load_random_shard
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.states.mixers import FreshStates
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from tests.engine.rank_processes import on_ranks
from tests.engine.tiny_models import TINY, make_tiny, tiny_config

TOKENS = 23


def logits_of(model: LoadedModel, rows: list[int]) -> torch.Tensor:
    index = torch.arange(TOKENS)
    with torch.inference_mode(), active(ValuesOnly(), FreshStates(model.mixers, TOKENS)):
        return model.forward(index, index, torch.tensor(rows))


def tiny(name: str) -> LoadedModel:
    if name not in TINY:
        pytest.skip("this transformers does not have it")
    return load_model(make_tiny(name))


@pytest.mark.parametrize("name", ["llama", "gemma2", "phi3", "mixtral", "olmo2"])
def test_what_follows_attention_is_computed_for_wanted_rows(name: str) -> None:
    model = tiny(name)
    expected = logits_of(model, [3, 20, 3])
    skip_unwanted_rows(model)
    seen: list[int] = []
    for layer in decoder_layers(model):
        layer.mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))  # type: ignore[operator, union-attr]
    torch.testing.assert_close(logits_of(model, [3, 20, 3]), expected)
    assert seen == [TOKENS] * (len(seen) - 1) + [3]
    assert logits_of(model, list(range(TOKENS))).shape[0] == TOKENS  # all, in one run
    assert seen[-1] == TOKENS
    skip_unwanted_rows(model)  # as the next engine on the same model does
    torch.testing.assert_close(logits_of(model, [3, 20, 3]), expected)
    assert seen[-1] == 3
    model.release()
    assert model.wanted is None
    assert all(layer._compiled_call_impl is None for layer in decoder_layers(model))


def test_hybrids_whose_last_layer_is_attention_are_no_exception() -> None:
    model = tiny("qwen3_next")
    expected = logits_of(model, [7, 9])
    skip_unwanted_rows(model)
    assert model.wanted is not None
    torch.testing.assert_close(logits_of(model, [7, 9]), expected)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama4", "longcat_flash", "gemma3n", "falcon_h1", "zamba2", "mamba2"]
)
def test_models_whose_code_does_not_allow_it_compute_all(name: str) -> None:
    """Shapes taken from elsewhere, positions counted, two attentions or none, a mixer, no order."""
    model = tiny(name)
    expected = logits_of(model, [3, 20])
    skip_unwanted_rows(model)
    assert model.wanted is None
    assert all(layer._compiled_call_impl is None for layer in decoder_layers(model))
    torch.testing.assert_close(logits_of(model, [3, 20]), expected)


def test_no_row_is_taken_of_what_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU an index that is not there ends the process, so it is no question to ask."""
    model = tiny("gemma3n")
    monkeypatch.setattr(torch.Tensor, "index_select", None)
    assert wanted_rows(model) is None


def test_a_model_that_gives_other_logits_so_computes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one would whose code mixes tokens after the last layer's attention."""
    model = tiny("llama")
    mlp = decoder_layers(model)[-1].mlp
    forward = mlp.forward  # type: ignore[union-attr]
    monkeypatch.setattr(mlp, "forward", lambda x: forward(x).cumsum(1))  # type: ignore[operator]
    assert wanted_rows(model) is None


@pytest.mark.slow
@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.parametrize("name", ["llama", "gemma3"])  # in stacks, and layers by themselves
@pytest.mark.turn(2)
def test_it_is_compiled_for_any_number_of_rows(name: str) -> None:
    model = tiny(name)
    rows = {2: [3, 20], 5: [1, 2, 7, 11, 22], TOKENS: list(range(TOKENS))}
    expected = {count: logits_of(model, which) for count, which in rows.items()}
    torch.compiler.reset()
    compiling.optimise(model)
    assert model.wanted is not None
    before = counters["stats"]["unique_graphs"]
    for count, which in rows.items():
        torch.testing.assert_close(logits_of(model, which), expected[count])
    assert counters["stats"]["unique_graphs"] == before
    compiling.optimise(model)  # as the next engine on the same model does
    assert model.wanted is not None
    torch.testing.assert_close(logits_of(model, rows[2]), expected[2])
    model.release()
    assert all(module._compiled_call_impl is None for module in model.model.modules())


@pytest.mark.usefixtures("dynamo_alone")
@pytest.mark.slow
def test_a_model_of_which_it_does_not_compile_computes_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny("llama")
    expected = logits_of(model, [3, 20])
    monkeypatch.setattr(compiling, "_compile_last", lambda *_: "no compiler here")
    with pytest.warns(UserWarning, match="the last layer runs for all tokens: no compiler here"):
        compiling.optimise(model)
    torch.testing.assert_close(logits_of(model, [3, 20]), expected)
    model.release()


def compiled_part(ranks: Ranks) -> tuple[bool, torch.Tensor, torch.Tensor]:
    """Logits of some rows by a part of a model, before and after it is compiled."""
    torch.manual_seed(0)
    part = load_random_shard(tiny_config("llama"), "random", torch.float32, ranks)
    before = logits_of(part, [3, 20])
    compiling.optimise(part)
    return part.wanted is not None, before, logits_of(part, [3, 20])


@pytest.mark.slow
def test_parts_of_a_model_are_compiled_so() -> None:
    for is_wanted, before, after in on_ranks(2, compiled_part):
        assert is_wanted
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_ranks_do_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        def least(self, number: int) -> int:
            return 0  # another's part is not the same

    model = tiny("llama")
    monkeypatch.setattr(model, "ranks", Two())
    monkeypatch.setattr(choice, "_is_same", lambda *_: True)
    assert wanted_rows(model) is None
