"""What is said of a start."""

import pytest
from rich.console import Console

from sharegen.results.journal.run_file import RunFile
from sharegen.results.screen.start import print_start, start_in_words

_PARTS = {"imports": 3.0, "reading the job": 0.5, "weights": 2.0, "first sample": 1.0}


def _run(device, compiles):
    return RunFile(
        timings={"start": _PARTS},
        stats={"device": device},
        extent={"machine": {"compile": compiles}},
    )


def test_a_run_without_a_start_says_nothing():
    assert start_in_words(RunFile()) is None


@pytest.mark.parametrize(
    ("device", "compiles", "said"),
    [
        ("cuda", True, "; layers compiled)"),
        ("cuda", False, "; layers not compiled)"),
        ("cuda", None, "first sample 1.0)"),
        ("cpu", False, "first sample 1.0)"),
        (None, True, "first sample 1.0)"),
    ],
)
def test_the_line_says_what_a_gpu_did_with_the_layers(device, compiles, said):
    line = start_in_words(_run(device, compiles))
    assert line.startswith("6.5 s to the first sample (imports 3.0, weights 2.0, ")
    assert line.endswith(said)


def test_all_parts_are_in_the_table(capsys):
    print_start(Console(), _run("cuda", False))
    said = capsys.readouterr().out
    assert all(part in said for part in _PARTS) and "layers not compiled" in said and "6.50" in said


def test_a_damaged_section_is_no_reason_to_fail():
    assert start_in_words(RunFile(timings={"start": _PARTS}, extent={"machine": 3}))
