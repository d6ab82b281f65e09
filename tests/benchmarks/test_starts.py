"""Starts, measured from outside."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.measurement import Start
from benchmarks.starts import command, gpus, measure, measurement, median, read_start
from benchmarks.tables.starts import starts_table
from sharegen.errors import ModelError, UsageError


def _start(**changes):
    values = {"model": "m", "when": "later", "seconds": 3.0, "command_seconds": 4.0,
              "parts": {"imports": 2.0, "weights": 0.5}}  # fmt: skip
    return Start.model_validate(values | changes)


def test_the_median_is_one_of_the_starts_with_its_parts():
    starts = [_start(seconds=seconds, parts={"imports": seconds}) for seconds in (5.0, 2.0, 3.0)]
    assert median(starts) == _start(seconds=3.0, parts={"imports": 3.0}, starts=3)
    assert median(starts[:2]).seconds == 2.0


@pytest.mark.parametrize(("device", "compiled"), [("cuda", False), ("cpu", None)])
def test_the_parts_are_the_run_file_s(tmp_path, device, compiled):
    run = {"timings": {"start": {"imports": 1.5, "tokenising": 0.0}}, "stats": {"device": device},
           "extent": {"machine": {"compile": False}}}  # fmt: skip
    (tmp_path / ".sharegen").mkdir()
    (tmp_path / ".sharegen" / "out.run.json").write_text(json.dumps(run))
    found = read_start(tmp_path / "out.jsonl", "m", "first", 2.0, 2.5)
    assert (found.parts, found.compiled) == ({"imports": 1.5}, compiled)


def test_the_table_has_a_column_for_each_start():
    starts = [_start(when="first", compiled=True), _start(starts=3, compiled=False)]
    text = starts_table(starts)
    assert "| seconds | m, first start | m, later (median of 3) |" in text
    assert "| imports | 2.0 | 2.0 |" in text and "compiling" not in text
    assert "| **to the first sample** | **3.0** | **3.0** |" in text
    assert "| layers compiled | yes | no |" in text


def test_a_measurement_needs_no_rate():
    found = measurement([_start()], ["--no-compile"], "1234567", busy=True)
    assert found.row == "start-nocompile" and found.card.kind == "cpu" and found.busy
    assert found.command == "python -m benchmarks start m --flag=--no-compile"


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ([], 1),
        (["--quantization", "fp8"], 1),
        (["--workers", "2"], 2),
        (["--workers=2", "--tensor-parallel-size", "4"], 8),
    ],
)
def test_each_worker_and_each_rank_has_a_card(flags, count):
    assert gpus(flags) == count


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"there is no config\.json"):
        list(measure([tmp_path], 1, []))


def test_a_command_that_fails_says_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    fails = [sys.executable, "-c", "import sys; sys.exit('no memory')"]
    monkeypatch.setattr("benchmarks.starts.command", lambda *_: fails)
    with pytest.raises(ModelError, match="no memory"):
        list(measure([tmp_path], 1, []))


def test_the_command_is_what_a_user_types():
    said = command(Path("m"), Path("p.jsonl"), Path("o.jsonl"), ["--compile"])
    assert said[1:5] == ["-m", "sharegen", "run", "prompts"] and said[-1] == "--compile"
