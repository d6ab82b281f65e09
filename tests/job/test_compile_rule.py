"""Which jobs begin with compiling."""

import json

import pytest

from sharegen.engine.model.compile.rule import ModelShape, shape_of
from sharegen.job.compile_rule import compiling_pays, shape_on_disk, with_compile
from sharegen.workload.configuration import resolve
from sharegen.workload.sampling_section import Sampling

_LLAMA_8B = ModelShape(32, 4096)


def _samplings(problems, **values):
    return [Sampling(**values)] * problems


def test_a_trial_of_some_rows_does_not_compile_and_a_study_does():
    trial = _samplings(20, samples=8, max_tokens=64)
    assert not compiling_pays(trial, _LLAMA_8B, None)
    study = _samplings(1319, samples=40, max_tokens=256)
    assert compiling_pays(study, _LLAMA_8B, None)
    assert not compiling_pays(study[:1], _LLAMA_8B, None)


def test_few_rows_at_a_time_are_more_steps():
    job = _samplings(40, samples=32, max_tokens=1024)
    assert not compiling_pays(job, _LLAMA_8B, None)
    assert compiling_pays(job, _LLAMA_8B, 8)


def test_a_larger_model_gains_more():
    job = _samplings(200, samples=20, max_tokens=512)
    assert not compiling_pays(job, ModelShape(16, 2048), None)
    assert compiling_pays(job, ModelShape(80, 8192), None)


def test_no_problem_at_all_and_no_limit_of_tokens():
    assert not compiling_pays([], _LLAMA_8B, None)
    assert not compiling_pays(_samplings(1, max_tokens=None), _LLAMA_8B, None)


@pytest.mark.parametrize("said", [True, False])
def test_what_a_flag_says_stays(said):
    configuration = resolve("self-consistency", flags={"machine": {"compile": said}})
    assert with_compile(configuration, [], _LLAMA_8B) is configuration


def test_what_is_open_is_said_where_the_shape_is_known():
    configuration = resolve("self-consistency")
    assert with_compile(configuration, [], None).machine.compile is None
    decided = with_compile(configuration, [], _LLAMA_8B)
    assert decided.machine.compile is False
    assert decided.identity == configuration.identity
    assert decided.is_bundled == configuration.is_bundled


def test_samples_of_the_same_bits_are_computed_alike_however_many_there_are():
    configuration = resolve("self-consistency", flags={"machine": {"deterministic": True}})
    assert with_compile(configuration, [], _LLAMA_8B).machine.compile is True


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        ({"num_hidden_layers": 6, "hidden_size": 256}, ModelShape(6, 256)),
        ({"n_layer": 12, "n_embd": 768}, ModelShape(12, 768)),
        ({"text_config": {"num_hidden_layers": 2, "hidden_size": 8}}, ModelShape(2, 8)),
        ({"num_hidden_layers": 6}, None),
        ({"num_hidden_layers": "six", "hidden_size": 256}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_shape_is_read_from_the_folder(tmp_path, config, shape):
    (tmp_path / "config.json").write_text(json.dumps(config))
    configuration = resolve("self-consistency").model_copy(update={"model": str(tmp_path)})
    assert shape_on_disk(configuration) == shape


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff"])
def test_a_config_that_is_not_there_or_damaged_is_left_to_who_loads_the_model(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    configuration = resolve("self-consistency").model_copy(update={"model": str(tmp_path)})
    assert shape_on_disk(configuration) is None


@pytest.mark.parametrize("model", ["owner/name", "no such name at all", "a/b/c", ""])
def test_a_model_that_is_not_on_this_machine_has_no_shape_yet(model, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    configuration = resolve("self-consistency").model_copy(update={"model": model})
    assert shape_on_disk(configuration) is None


def test_a_config_of_transformers_says_the_same():
    class Config:
        n_layer, n_embd = 3, 24

        def get_text_config(self):
            return self

    assert shape_of(Config()) == ModelShape(3, 24)
