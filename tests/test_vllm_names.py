"""vLLM's names: each is the same here, taken for one of ours, or refused with what to use."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import sharegen
from sharegen import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams
from sharegen.common import vllm_names
from sharegen.common.vllm_names import ALIASES, AS_ALWAYS, own_arguments
from sharegen.engine.execute.memory import left_beside
from sharegen.errors import RequestError, UsageError
from sharegen.outputs import BeamSearchSequence, CompletionOutput, Logprob, RequestOutput
from sharegen.prompts import one_each, pairs
from tests.tiny import save_tiny_model

ROOT = Path(__file__).parents[1]
NAMES = json.loads((ROOT / "docs" / "vllm_names.json").read_text())
OF_CALLS = [*inspect.signature(LLM.generate).parameters, *inspect.signature(LLM.chat).parameters]
MEMORY = 1 << 22


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("names") / "model")


def names_of(kind: Any) -> list[str]:
    made = [name for name, member in vars(kind).items() if isinstance(member, property)]
    return [each.name for each in fields(kind)] + made


@pytest.mark.parametrize(
    ("what", "own", "others"),
    [
        ("LLM", inspect.signature(LLM).parameters,
         [*ALIASES, *AS_ALWAYS, *vllm_names.LLM_NOT_HERE]),
        ("LLM's methods", vars(LLM), vllm_names.METHODS_NOT_HERE),
        ("generate, chat", OF_CALLS, vllm_names.CALL_NOT_HERE),
        ("SamplingParams", names_of(SamplingParams), vllm_names.SAMPLING_NOT_HERE),
        ("StructuredOutputsParams", names_of(StructuredOutputsParams),
         vllm_names.STRUCTURED_NOT_HERE),
        ("RequestOutput", names_of(RequestOutput), vllm_names.OUTPUT_NOT_HERE),
        ("CompletionOutput", names_of(CompletionOutput), vllm_names.OUTPUT_NOT_HERE),
        ("Logprob", names_of(Logprob), ()),
        ("BeamSearchParams", names_of(BeamSearchParams), vllm_names.BEAM_NOT_HERE),
        ("BeamSearchSequence", names_of(BeamSearchSequence), vllm_names.BEAM_NOT_HERE),
    ],
)  # fmt: skip
def test_every_name_is_one_thing(what: str, own: Collection[str], others: Collection[str]) -> None:
    assert len(set(others)) == len(others) and not set(own) & set(others)
    for name in NAMES[what]:
        assert (name in own) != (name in others), f"{what}: {name}"
    if others not in (vllm_names.OUTPUT_NOT_HERE, vllm_names.BEAM_NOT_HERE):  # of two kinds each
        assert set(others) <= set(NAMES[what]), "a name that vLLM does not have"


def refused(call: Any, name: str, why: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == f"vLLM's {name} is not here: {why}"


@pytest.mark.parametrize("name", vllm_names.SAMPLING_NOT_HERE)
def test_sampling_parameters_that_are_not_here(name: str) -> None:
    why = vllm_names.SAMPLING_NOT_HERE[name]
    refused(lambda: SamplingParams(**{name: 1}), name, why)


@pytest.mark.parametrize("name", vllm_names.STRUCTURED_NOT_HERE)
def test_structured_outputs_that_are_not_here(name: str) -> None:
    why = vllm_names.STRUCTURED_NOT_HERE[name]
    refused(lambda: StructuredOutputsParams(choice=["a"], **{name: 1}), name, why)
    with pytest.raises(UsageError) as raised:
        SamplingParams(structured_outputs={name: 1})  # type: ignore[arg-type]
    assert str(raised.value) == f"structured_outputs has no {name!r}: {why}"


def test_beam_search_parameters_that_are_not_here() -> None:
    why = vllm_names.BEAM_NOT_HERE["structured_outputs"]
    call = partial(BeamSearchParams, beam_width=2, max_tokens=3)
    refused(lambda: call(structured_outputs=1), "structured_outputs", why)


def test_a_field_that_nobody_has() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tempreature'"):
        SamplingParams(tempreature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", vllm_names.LLM_NOT_HERE)
def test_arguments_of_llm_that_are_not_here(name: str) -> None:
    """Before anything is loaded."""
    why = vllm_names.LLM_NOT_HERE[name]
    refused(lambda: LLM("no/such/model", **{name: 1}), name, why)


def test_arguments_by_vllm_s_name() -> None:
    nothing = {"max_sequences": None, "kv_cache_memory": None}
    given = {"max_num_seqs": 3, "kv_cache_memory_bytes": 9, "enable_prefix_caching": True}
    assert own_arguments(given, nothing, []) == {"max_sequences": 3, "kv_cache_memory": 9}
    with pytest.raises(TypeError, match="max_num_seqs is vLLM's name of max_sequences: give one"):
        LLM("no/such/model", max_sequences=3, max_num_seqs=3)
    with pytest.raises(TypeError, match="LLM got an unexpected keyword argument 'max_seqs'"):
        LLM("no/such/model", max_seqs=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", AS_ALWAYS)
def test_one_value_is_how_things_are(name: str) -> None:
    always, instead = AS_ALWAYS[name]
    assert own_arguments({name: always}, {}, []) == {}
    with pytest.raises(TypeError) as raised:
        LLM("no/such/model", **{name: "else"})
    assert str(raised.value) == f"vLLM's {name} can only be {always!r} here: {instead}"


def test_a_type_checker_knows_what_is_taken() -> None:
    assert set(vllm_names.VllmArguments.__annotations__) == {*ALIASES, *AS_ALWAYS}
    for name in (*ALIASES, *AS_ALWAYS):
        assert re.search(rf"\b{name}\b", inspect.getdoc(LLM) or ""), name
    for call in (LLM.generate, LLM.chat, LLM.stream, LLM.fork, LLM.beam_search):
        kinds = [each.kind for each in inspect.signature(call).parameters.values()]
        assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mypy") is None, reason="needs mypy")
def test_mypy_sees_the_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
from sharegen import LLM, RequestOutput, SamplingParams
import torch
llm = LLM("m", dtype=torch.float16, max_num_seqs=4, enable_prefix_caching=True)
found: list[RequestOutput] = llm.generate("a", SamplingParams(n=2), use_tqdm=False)
LLM("m", max_num_seq=4)
LLM("m", enable_prefix_caching=False)
llm.generate("a", SamplingParams(tempreature=1))
llm.generate("a", {"max_tokens": 3})
llm.generate("a", use_tdqm=False)
llm.chat([], lora_request=1)
llm.generate(prompt_token_ids=[[1]])
"""
    )
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--ignore-missing-imports",
               "--follow-imports=silent", str(script)]  # fmt: skip
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [int(line.split(":")[1]) for line in ran.stdout.splitlines() if ": error:" in line]
    assert sorted(set(lines)) == [6, 7, 8, 9, 10, 11, 12], ran.stdout


def test_a_misspelt_name_is_told_with_the_nearest() -> None:
    calls: dict[str, Callable[[], Any]] = {
        "'temperature'": lambda: SamplingParams(tempreature=1.0),  # type: ignore[call-arg]
        "'beam_width'": lambda: BeamSearchParams(beam_with=2, max_tokens=3),  # type: ignore[call-arg]
        "'choice'": lambda: StructuredOutputsParams(choices=["a"]),  # type: ignore[call-arg]
        "'max_num_seqs'": lambda: LLM("m", max_num_seq=3),  # type: ignore[call-arg]
        "'tensor_parallel_size'": lambda: LLM("m", tensor_paralel_size=3),  # type: ignore[call-arg]
    }
    for nearest, call in calls.items():
        with pytest.raises(TypeError, match=f": did you mean {nearest}\\?$"):
            call()


@pytest.mark.parametrize("kind", [SamplingParams, StructuredOutputsParams, BeamSearchParams])
def test_parameters_that_are_changed_are_told_how_to_make_others(kind: Any) -> None:
    given = {
        SamplingParams: {},
        StructuredOutputsParams: {"choice": ["a"]},
        BeamSearchParams: {"beam_width": 2, "max_tokens": 3},
    }[kind]
    name = next(iter(given), "n")
    params = kind(**given)
    with pytest.raises(FrozenInstanceError, match=rf"dataclasses.replace\(params, {name}=4\)"):
        setattr(params, name, 4)
    assert replace(params) == params and pickle.loads(pickle.dumps(params)) == params


def test_a_seed_of_vllm_s_that_is_none() -> None:
    assert SamplingParams(seed=-1) == SamplingParams()
    assert SamplingParams(seed=-2).seed == -2


def test_parameters_as_a_mapping() -> None:
    said = r"sampling_params is .*{'max_tokens': 3}.*: write SamplingParams\(max_tokens=3\)"
    for given in ({"max_tokens": 3}, [{"max_tokens": 3}]):
        with pytest.raises(RequestError, match=said):
            one_each(given, 1)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=said):
            list(pairs(["a"], given))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"write BeamSearchParams\(beam_width=2\)"):
        one_each({"beam_width": 2}, 1)  # type: ignore[arg-type]
    for odd in (16, "n=3", [None]):
        with pytest.raises(RequestError, match=r"write SamplingParams\(\.\.\.\) for all prompts"):
            one_each(odd, 1 if isinstance(odd, list) else 3)  # type: ignore[arg-type]


def test_the_package_lists_its_api_and_nothing_else() -> None:
    assert set(dir(sharegen)) == set(sharegen.__all__) and "os" not in dir(sharegen)
    assert sharegen.RequestOutput is RequestOutput
    assert all(getattr(sharegen, name) is not None for name in sharegen.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'SamplingParam'") as raised:
        _ = sharegen.SamplingParam
    assert raised.value.obj is sharegen  # by which Python tells the nearest name


@pytest.mark.parametrize("dtype", ["half", torch.float16])
def test_a_dtype_by_any_name(folder: Path, dtype: Any) -> None:
    with LLM(folder, dtype=dtype, kv_cache_memory=MEMORY) as llm:
        assert llm.dtype == "float16"
        assert repr(llm) == f"LLM({str(folder)!r}, dtype='float16', device='cpu', workers=1)"
    assert repr(llm) == f"LLM({str(folder)!r}, closed)"


def test_a_dtype_that_there_is_not(folder: Path) -> None:
    with pytest.raises(UsageError, match="unknown dtype 'float64': use auto, float32, float16, bf"):
        LLM(folder, dtype=torch.float64)


def test_a_script_for_vllm(folder: Path) -> None:
    llm = LLM(
        model=str(folder), tokenizer=str(folder), tensor_parallel_size=1, dtype="float32", seed=1,
        max_num_seqs=3, kv_cache_memory_bytes=MEMORY, max_model_len=40, enforce_eager=True,
        block_size=8, trust_remote_code=False, skip_tokenizer_init=False,
    )  # fmt: skip
    config = llm.engine.config
    assert (config.max_sequences, config.kv_cache_memory, config.block_size) == (3, MEMORY, 8)
    assert config.enforce_eager and llm.context_length == 40
    outputs = llm.generate(
        [{"prompt": "Tom has"}, {"prompt_token_ids": [5, 6, 7]}],
        SamplingParams(n=2, max_tokens=None, ignore_eos=True, logprobs=1),
        use_tqdm=False,
    )
    for output in outputs:
        assert output.finished and len(output.outputs) == 2
        room = 40 - len(output.prompt_token_ids)
        for sample in output.outputs:
            assert (sample.finish_reason, sample.ended_by) == ("length", "context")
            assert len(sample.token_ids) == len(sample.logprobs or ()) == room
            assert sample.text == llm.get_tokenizer().decode(sample.token_ids)
    turns = [{"role": "user", "content": "Tom?"}]
    for call in (llm.generate, llm.chat):
        why = vllm_names.CALL_NOT_HERE["lora_request"]
        refused(lambda call=call: call(turns, lora_request=1), "lora_request", why)
    with pytest.raises(RequestError, match=r"messages is a list of .*, not {'role': 'user'"):
        llm.chat(turns[0])
    for holder, known in (
        (llm, vllm_names.METHODS_NOT_HERE),
        (outputs[0], {"metrics": vllm_names.OUTPUT_NOT_HERE["metrics"]}),
    ):
        for name, why in known.items():
            with pytest.raises(AttributeError) as raised:
                getattr(holder, name)
            assert str(raised.value) == f"vLLM's {name} is not here: {why}"
        assert not hasattr(holder, "no_such_name")
    with pytest.raises(TypeError, match=r"generate\(\) got .* 'use_tdqm': did you mean 'use_tqdm'"):
        llm.generate("Tom", use_tdqm=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'max_tokens': give SamplingParams\(max_tokens=...\)$"):
        llm.generate("Tom", max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r'give {"prompt_token_ids": \[...\]} as a prompt$'):
        llm.generate(prompt_token_ids=[[5, 6]])  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="has 40 tokens, but the model's context holds 40"):
        llm.generate([3] * 40)
    llm.close()


def test_no_seed_is_the_first(folder: Path) -> None:
    with LLM(folder, seed=None, kv_cache_memory=MEMORY) as llm:
        assert llm.engine.config.seed == 0
        assert llm.generate("Tom has")[0].finished


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_model_len": 4000}, "max_model_len is 4000, and the model's context holds 2048"),
        ({"workers": "x"}, "workers is 'x': it must be a whole number"),
        ({"tensor_parallel_size": 1.5}, "tensor_parallel_size is 1.5: it must be a whole number"),
        ({"seed": 1.5}, "seed is 1.5: it must be a whole number"),
        ({"seed": "x"}, "seed is 'x': it must be a whole number"),
        ({"max_model_len": 0}, "max_model_len is 0: it must be a whole number of at least 1"),
        ({"gpu_memory_utilization": 0.9}, "is for a GPU, and the model is on a CPU: leave it out"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization is 1.1: it must be a number"),
        ({"gpu_memory_utilization": 0.5, "kv_cache_memory_bytes": 9}, "both say how large the KV"),
        ({"revision": "main"}, "revision 'main' is of a model on the hub, and .* is a folder"),
    ],
    ids=str,
)  # fmt: skip
def test_values_that_cannot_be(folder: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LLM(folder, **values)


def test_a_share_of_a_gpu_holds_model_steps_and_cache() -> None:
    GiB = 1 << 30
    free, total = 60 * GiB, 80 * GiB
    assert left_beside(4 * GiB, free, total) > 54 * GiB
    assert left_beside(4 * GiB, free, total, held=16 * GiB, share=0.5) == 20 * GiB
    assert left_beside(4 * GiB, free, total, held=16 * GiB, share=1.0) < 56 * GiB  # not all is free
    assert left_beside(4 * GiB, free, total, held=40 * GiB, share=0.5) == 0
