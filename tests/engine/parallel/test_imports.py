"""What is imported before an engine is made, seen in processes of their own."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.parallel import imports
from sharegen.engine.parallel.imports import has_cpu_alone, import_engine

_HEAVY = ("torch", "transformers", "triton", "huggingface_hub")

_LIGHT = f"""
import sys

from sharegen import LLM, BeamSearchParams, SamplingParams
from sharegen.llm import LLM as same

assert LLM is same
import inspect

assert "max_num_seqs" in LLM.__doc__ and "model" in inspect.signature(LLM).parameters
for wrong in ({{"modle": 1}}, {{"block_sze": 1}}):
    try:
        LLM("model", **wrong)
    except TypeError as error:
        assert "did you mean" in str(error), error
try:
    LLM("model", block_size=0)
except Exception as error:
    assert "block_size" in str(error), error
for wrong in ("./no/such", "no/such/model", "none.gguf"):
    try:
        LLM(wrong)
    except Exception as error:
        assert str(error).startswith("no f"), error
    else:
        raise AssertionError(wrong)
found = [name for name in {_HEAVY!r} if name in sys.modules]
assert not found, found
"""


class _AtOnce(threading.Thread):
    def start(self) -> None:
        self.run()


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The devices that something was made on, as on a machine with a GPU."""
    made: list[str] = []
    empty = torch.empty

    def noted(*sizes: Any, device: Any = None, **named: Any) -> Any:
        made.append(str(device))
        if "cuda" in str(device):
            raise RuntimeError("no GPU")
        return empty(*sizes, device=device, **named)

    monkeypatch.setattr(torch, "empty", noted)
    monkeypatch.setattr(imports, "_may_have_gpu", lambda: True)
    monkeypatch.setattr(threading, "Thread", _AtOnce)
    monkeypatch.setattr(imports, "begin_to_hash_triton", lambda: None)
    yield made


def test_who_imports_llm_waits_for_no_torch_and_errors_of_arguments_do_not_either() -> None:
    subprocess.run([sys.executable, "-c", _LIGHT], check=True, timeout=100)


@pytest.mark.parametrize(
    ("device", "named", "expected"),
    [
        ("auto", {"here": True}, ["cuda"]),
        ("cuda:1", {"here": True}, ["cuda:1"]),
        ("cpu", {"here": True}, []),
        ("auto", {}, []),
        ("auto", {"here": True, "computes": False}, []),
    ],
)
def test_a_gpu_is_woken_up_where_an_engine_will_use_it(
    device: str, named: dict[str, bool], expected: list[str], woken: list[str]
) -> None:
    import_engine(device, compiles=False, shards=True, **named)
    assert woken == expected


def test_a_gpu_that_this_process_uses_already_is_left_alone(
    woken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    import_engine("auto", compiles=False, shards=True, here=True)
    assert not woken


def test_a_cpu_is_all_there_is_without_a_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports.sys, "platform", "linux")
    monkeypatch.setattr(imports, "_GPUS", ("/nowhere/at/all",))
    assert has_cpu_alone("auto") and has_cpu_alone("cpu") and not has_cpu_alone("cuda:0")


@pytest.mark.turn(2)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_command_says_before_torch_is_imported_that_a_folder_is_not_there(
    command: str, tmp_path: Path
) -> None:
    asked = [sys.executable, "-X", "importtime", "-m", "sharegen", command, "self-consistency"]
    done = subprocess.run(
        [*asked, "--model", "./none"], capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 1 and "no folder ./none" in done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sharegen" in imported and "torch" not in imported
