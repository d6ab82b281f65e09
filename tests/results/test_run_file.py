"""The run.json: replaced whole, refused when broken, its differences named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.run_file import RunFile, as_json, differences, run_file_path


def test_its_name_stands_beside_the_journal() -> None:
    assert run_file_path("runs/a.jsonl") == Path("runs/a.run.json")
    assert run_file_path("runs/a.v2") == Path("runs/a.v2.run.json")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = RunFile(
        configuration={"model": "m", "few_shot": {"k": 8}},
        fingerprints={"model": "f00d"},
        extent={"limit": 5},
        versions={"torch": "2.11"},
        counts={"samples": 3},
        timings={"seconds": 1.5},
        stats={"decode_steps": 7},
    )
    path = tmp_path / "a.run.json"
    RunFile(configuration={"old": True}).write(path)
    run.write(path)
    assert RunFile.read(path) == run
    assert list(tmp_path.iterdir()) == [path]  # nothing is left of the replacement
    assert RunFile.read(tmp_path / "other.run.json") is None
    assert RunFile.read(path / "below-a-file.run.json") is None
    with pytest.raises(JournalError, match="cannot be read: Is a directory"):
        RunFile.read(tmp_path)


def test_settings_merge_the_extent_into_the_configuration() -> None:
    run = RunFile(
        configuration={"model": "m", "sampling": {"top_k": 3}},
        extent={"sampling": {"samples": 20}, "limit": 5},
    )
    assert run.settings == {"model": "m", "sampling": {"top_k": 3, "samples": 20}, "limit": 5}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "has no `configuration`"),
        ('{"configuration": 3}', "`configuration` is not a JSON object"),
    ],
)
def test_a_broken_one_is_named_in_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "a.run.json"
    path.write_text(content)
    with pytest.raises(JournalError, match=complaint) as caught:
        RunFile.read(path)
    assert str(path) in str(caught.value) and "repair it" in str(caught.value)
    with pytest.raises(JournalError, match=f"{complaint}: start again"):
        RunFile.read(path, "start again")
    assert "\n" not in str(caught.value)


def test_a_failed_replacement_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.run.json"
    RunFile(configuration={"a": 1}).write(path)
    (tmp_path / "a.run.json.partial").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        RunFile(configuration={"a": 2}).write(path)
    assert json.loads(path.read_text())["configuration"] == {"a": 1}


def test_sections_compare_as_they_are_read_back() -> None:
    section = {"stop": ("a", "b"), "path": Path("x"), "n": 1}
    assert as_json(section) == {"stop": ["a", "b"], "path": "x", "n": 1}
    assert differences(as_json(section), json.loads(json.dumps(as_json(section)))) == []


def test_differences_name_nested_fields_with_both_values() -> None:
    before = {"model": "a", "sampling": {"top_p": 1.0, "seed": 0, "min_p": 0.1}, "same": [1]}
    now = {"model": "b", "sampling": {"top_p": 1, "seed": 3, "top_k": 5}, "same": [1]}
    assert differences(before, now) == [
        'model was "a" and is now "b"',
        "sampling.seed was 0 and is now 3",
        "sampling.min_p was 0.1 and is no longer set",
        "sampling.top_k was not set and is now 5",
    ]


def test_an_empty_section_differs_from_a_filled_one() -> None:
    assert differences({"where": {}}, {"where": {"level": 1}}) == [
        "where was {} and is no longer set",
        "where.level was not set and is now 1",
    ]


def test_long_values_are_cut_to_where_they_differ() -> None:
    common = "line one\n" * 500
    (phrase,) = differences({"prompt": common + "A" * 200}, {"prompt": common + "B" * 200})
    assert len(phrase) < 250 and "\n" not in phrase
    assert "AAA" in phrase and "BBB" in phrase
    (phrase,) = differences({"prompt": common}, {"prompt": common + "more"})
    assert "more" in phrase
    (phrase,) = differences({}, {"prompt": "x" * 500})
    assert len(phrase) < 120
