"""The step of mixed settings: that all settings run, and that each is compared with plain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.commands import app
from benchmarks.mixed import SETTINGS
from sharegen.cli import main
from tests.tiny import save_tiny_model

SIZES = ["--rows", "9", "--output", "5", "--repeats", "1"]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["mixed", *arguments], app)
    captured = capsys.readouterr()
    return exit.value.code, captured.out, captured.err


@pytest.mark.slow
def test_one_line_of_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_model(tmp_path)
    capsys.readouterr()
    options = ["--shape", str(model), "--device", "cpu", "--dtype", "float32", *SIZES]
    code, out, table = run(options, capsys)
    assert code == 0, table
    result = json.loads(out)
    times = result["step_ms"]
    assert set(times) == {"plain", "mixed", *SETTINGS} and min(times.values()) > 0
    assert result["overhead"] == pytest.approx(times["mixed"] / times["plain"] - 1)
    assert (result["bench"], result["rows"], result["device"]) == ("mixed", 9, "cpu")
    assert [line.split("  ")[0] for line in map(str.strip, table.splitlines())] == list(times)


def test_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(["--dtype", "int8"], capsys)
    assert (code, out) == (2, "") and "it must be bfloat16, float16 or float32" in error
    code, _, error = run(["--shape", "no-such", "--device", "cpu"], capsys)
    assert code == 2 and "'no-such'" in error and error.count("\n") == 1
