from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from sharegen.workload.dataset import read_rows
from sharegen.workload.standard_input import keep_rows


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    ("text", "suffix", "values"),
    [
        ('\n {"q": "é"}\n{"q": 2}\n', ".jsonl", [{"q": "é"}, {"q": 2}]),
        (' [{"q": "é"}]', ".json", [{"q": "é"}]),
        ("é one\ntwo", ".txt", [{"text": "é one"}, {"text": "two"}]),
    ],
)
def test_what_is_piped_in_is_of_the_kind_that_it_begins_as(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: str,
    text: str,
    suffix: str,
    values: list[dict[str, object]],
) -> None:
    """PowerShell pipes UTF-16."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode(encoding))))
    path = keep_rows()
    assert path.suffix == suffix
    assert [row.values for row in read_rows(str(path), None, "test").rows] == values
