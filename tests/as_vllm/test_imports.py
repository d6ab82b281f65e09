"""`import vllm` with sharegen in its place: names, versions, and what is not there."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import parse

import sharegen
from sharegen.as_vllm import stand_in
from sharegen.as_vllm.__main__ import main
from sharegen.as_vllm.imports import what_to_use
from sharegen.as_vllm.names import MODULES, NOT_HERE


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.mark.parametrize("module", MODULES)
def test_all_names_are_there(module: str) -> None:
    stand_in()
    found = importlib.import_module(module)
    for name in MODULES[module]:
        assert getattr(found, name) is not None
    assert not any(name in NOT_HERE for name in (module, *(f"{module}.{n}" for n in dir(found))))


def test_what_is_the_same_is_sharegen_s_own() -> None:
    stand_in()
    vllm = importlib.import_module("vllm")
    outputs = importlib.import_module("vllm.outputs")
    assert vllm.RequestOutput is outputs.RequestOutput is sharegen.RequestOutput
    assert issubclass(vllm.LLM, sharegen.LLM)
    assert issubclass(vllm.SamplingParams, sharegen.SamplingParams)


def test_who_asks_for_the_version_finds_it() -> None:
    stand_in()
    version = importlib.import_module("vllm").__version__
    assert importlib.metadata.version("vllm") == version
    assert find_spec("vllm") is not None
    assert parse("0.9.0") < parse(version) and sharegen.__version__ in version
    assert importlib.metadata.version("pytest")  # others are found as ever


def test_without_it_there_is_no_vllm() -> None:
    assert find_spec("vllm") is None


def test_what_was_imported_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", sys)
    with pytest.raises(RuntimeError, match="imported before"):
        stand_in()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from vllm import AsyncLLMEngine", "sharegen serve"),
        ("from vllm import Nothing", "docs/reference/vllm.md says what there is"),
        ("import vllm; vllm.EngineArgs", "give its arguments to LLM"),
        ("import vllm.entrypoints.openai.api_server", "sharegen serve"),
        ("from vllm.distributed.parallel_state import get_world_group", "tensor_parallel_size"),
        ("import vllm.distributed.utils", "tensor_parallel_size"),
        ("import vllm.nothing", "docs/reference/vllm.md says what there is"),
    ],
)
def test_a_name_that_is_not_there_says_what_to_use(line: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(line)
    with pytest.raises((ImportError, AttributeError)) as raised:
        main([str(script)])
    assert any(said in note for note in raised.value.__notes__)


def test_other_errors_are_the_program_s_own(tmp_path: Path) -> None:
    assert what_to_use(ImportError("cannot import name 'x' from 'y'", name="y")) is None
    assert what_to_use(AttributeError("no x", name="x", obj=3)) is None
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit(7)")
    with pytest.raises(SystemExit) as left:
        main([str(script)])
    assert left.value.code == 7


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["--n"], 2), (["-m"], 2), (["no.py"], 2), (["--help"], 0)]
)
def test_what_names_no_program_is_wrong_usage(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == code
    assert "usage: python -m sharegen.as_vllm" in "".join(capsys.readouterr())


def test_a_script_and_a_module_get_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("HERE = 'beside'")
    (tmp_path / "prog.py").write_text(
        "import sys, beside, vllm\n"
        "if __name__ == '__main__':\n"
        "    print(sys.argv[1:], beside.HERE, vllm.__version__.partition('+')[2])\n"
    )
    said = f"['-x', '1'] beside sharegen.{sharegen.__version__}"
    for program in (["prog.py"], ["-m", "prog"]):
        command = [sys.executable, "-m", "sharegen.as_vllm", *program, "-x", "1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == said
        assert "stands in for vllm" in done.stderr
