"""The run.json: replaced whole, refused when broken, its differences named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.journal.identity import differences
from sharegen.results.journal.run_file import RunFile, as_json, run_file_path


def test_it_lies_in_a_hidden_folder_beside_the_journal() -> None:
    assert run_file_path("runs/a.jsonl") == Path("runs/.sharegen/a.run.json")
    assert run_file_path("runs/a.v2") == Path("runs/.sharegen/a.v2.run.json")


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
        *(
            (
                f'{{"configuration": {{}}, "extent": {{"answer": {answer}}}}}',
                "no way to read answers",
            )
            for answer in ('"number"', "[]", '{"extract": "numbre"}', '{"patterns": "x"}')
        ),
        ('{"configuration": {}, "answers": {"golds": {"a": 5}}}', "no object of answers"),
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
    path.mkdir()
    (path / "kept").touch()
    with pytest.raises(OSError, match="it is a folder"):
        RunFile(configuration={"a": 2}).write(path)
    assert list(tmp_path.iterdir()) == [path] and (path / "kept").exists()


def test_sections_compare_as_they_are_read_back() -> None:
    section = {"stop": ("a", "b"), "path": Path("x"), "n": 1}
    assert as_json(section) == {"stop": ["a", "b"], "path": "x", "n": 1}
    assert differences(as_json(section), json.loads(json.dumps(as_json(section)))) == []
