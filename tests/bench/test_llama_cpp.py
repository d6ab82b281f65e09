"""The comparison with llama.cpp: what its tool prints is read, and what is missing is said."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from sharegen.bench import llama_cpp
from sharegen.bench.llama_cpp import TOOL, Measured, parse, run_tool
from sharegen.cli import main
from sharegen.errors import SharegenError

# Recorded: the tool built from llama.cpp's source, on two cores.
LINE = (
    '{"n_kv_max": 3072, "n_batch": 2048, "n_ubatch": 512, "flash_attn": -1, "is_pp_shared": 1, '
    '"n_gpu_layers": -1, "n_threads": 2, "n_threads_batch": 2, "pp": 752, "tg": 16, "pl": 20, '
    '"n_kv": 1072, "t_pp": 9.095929, "speed_pp": 82.674347, "t_tg": 42.511410, '
    '"speed_tg": 7.527391, "t": 51.607338, "speed": 20.772240}'
)


def test_what_the_tool_prints() -> None:
    [line] = parse(f"\n{LINE}\n\n")
    assert line == Measured(20, 16, 51.607338)
    assert line.pace.tokens_per_second == pytest.approx(320 / 51.607338)


def tool_that(tmp_path: Path, does: str) -> Path:
    path = tmp_path / TOOL
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def test_a_tool_that_fails_or_leaves_a_size_out(tmp_path: Path) -> None:
    failing = tool_that(tmp_path, "echo >&2 'error: unable to load model'; exit 1")
    with pytest.raises(SharegenError, match=r"llama-batched-bench failed: error: unable to load"):
        run_tool(str(failing), tmp_path / "m.gguf", 752, 16, [20])
    short = tool_that(tmp_path, f"echo '{LINE}'")
    assert run_tool(str(short), tmp_path / "m.gguf", 752, 16, [20])[20].tokens == 320
    with pytest.raises(SharegenError, match="no result for 80 sequences"):
        run_tool(str(short), tmp_path / "m.gguf", 752, 16, [20, 80])


def complaint(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "llama.cpp", *arguments])
    assert exit.value.code == 2
    return capsys.readouterr().err


def test_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.gguf"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"{TOOL} is not on the PATH: build it" in complaint(["--model", str(file)], capsys)
    tool_that(tmp_path, "exit 1")
    assert "there is no such file" in complaint(["--model", str(file)], capsys)
    file.write_bytes(b"PK")
    assert "this is no GGUF file" in complaint(["--model", str(file)], capsys)
    assert "--dtype int8" in complaint(["--model", str(file), "--dtype", "int8"], capsys)
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(llama_cpp.importlib.util, "find_spec", lambda name: None)
    for model in (file, tmp_path):
        assert "pip install 'gguf>=" in complaint(["--model", str(model)], capsys)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(TOOL) is None, reason=f"needs {TOOL}")
@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf")
def test_the_bundled_model_through_the_tool_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "llama.cpp", "--prompt", "32", "--max-tokens", "4", "--batch", "2"])
    assert exit.value.code == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["llama_cpp_tokens_per_second"]["2"] > 0
    assert result["sharegen_tokens_per_second"]["2"] > 0
    assert "2 sequences" in output.err
