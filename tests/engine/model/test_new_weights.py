"""Another checkpoint's weights in an engine that lives: all of them, or none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.compile.fusing import fuse_projections
from sharegen.engine.model.load import load_model
from sharegen.engine.model.new_weights import NewWeights
from sharegen.errors import ModelError, UsageError
from tests.tiny import save_tiny_model

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    top = tmp_path_factory.mktemp("models")
    return [save_tiny_model(top / f"step-{seed}", seed=seed) for seed in range(2)]


def open_engine(folder: Path) -> Engine:
    config = EngineConfig(kv_cache_memory=4 << 20, max_sequences=4)
    return Engine(load_model(folder, "cpu"), None, config)


@pytest.fixture
def engine(folders: list[Path]) -> Iterator[Engine]:
    found = open_engine(folders[0])
    yield found
    found.close()


def drawn(engine: Engine) -> list[int]:
    [completion] = engine.generate([Request(0, PROMPT, PARAMS, range(1))])
    return list(completion.token_ids)


def test_an_engine_draws_as_one_of_the_other_model(folders: list[Path], engine: Engine) -> None:
    before = drawn(engine)
    other = open_engine(folders[1])
    want, fingerprint = drawn(other), other.model.fingerprint
    other.close()
    engine.take_weights(NewWeights(engine.model, folders[1]))  # and what was cached is forgotten
    assert drawn(engine) == want != before and engine.model.fingerprint == fingerprint
    engine.take_weights(NewWeights(engine.model, folders[0]))
    assert drawn(engine) == before


def test_fused_projections_take_them_where_they_lie(folders: list[Path]) -> None:
    """As on a GPU, whose compiled code and graphs read the joint weights."""
    model, other = load_model(folders[0], "cpu"), load_model(folders[1], "cpu")
    fuse_projections(model.model)
    fused = model.model.model.layers[1].mlp.gate_proj
    place = fused.weight.data_ptr()
    NewWeights(model, folders[1]).put()
    mlp = other.model.model.layers[1].mlp
    assert torch.equal(fused.weight, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
    assert fused.weight.data_ptr() == place


def test_not_while_a_job_runs(folders: list[Path], engine: Engine) -> None:
    new = NewWeights(engine.model, folders[1])
    before = drawn(engine)
    engine.begin()
    with pytest.raises(UsageError, match="a job runs"):
        engine.take_weights(new)
    engine.end()
    assert drawn(engine) == before


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("config.json", {"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}},
         "another config: rope_parameters.rope_theta is 5.0, and was 10000.0"),
        ("config.json", {"num_hidden_layers": 1}, "num_hidden_layers is 1, and was 2"),
        ("config.json", {"quantization_config": {"quant_method": "bitsandbytes"}}, "is quantised"),
        ("config.json", {"auto_map": {"AutoConfig": "own.Config"}, "model_type": "own"},
         "own code"),
        ("generation_config.json", {"eos_token_id": 7}, "ends its texts with other tokens"),
    ],
    ids=["rope", "layers", "quantised", "code", "ends"],
)  # fmt: skip
def test_what_differs_is_named(
    folders: list[Path], engine: Engine, tmp_path: Path, file: str, values: object, said: str
) -> None:
    folder = tmp_path / "other"
    shutil.copytree(folders[1], folder)
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))  # type: ignore[operator]
    before = [weight.clone() for weight in engine.model.model.parameters()]
    with pytest.raises(ModelError, match=said):
        NewWeights(engine.model, folder)
    assert all(map(torch.equal, before, engine.model.model.parameters()))


def test_weights_of_other_kinds_stay(folders: list[Path]) -> None:
    lent = load_model(load_model(folders[0], "cpu").model)
    with pytest.raises(ModelError, match="whose owner changes it"):
        NewWeights(lent, folders[1])
    lent.release()
    model = load_model(folders[0], "cpu")
    weight = model.model.model.layers[0].mlp.up_proj.weight
    weight.requires_grad_(False).data = weight.data.to(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match="is quantised"):
        NewWeights(model, folders[1])
