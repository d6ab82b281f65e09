"""The table of `sharegen score`: every column is called what it holds."""

from __future__ import annotations

import pytest

from sharegen.cli.score import _print_estimates
from sharegen.results.scoring.passk import pass_estimates


def test_columns_are_called_what_they_hold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    all_of_them, easy = pass_estimates([(10, 5)] * 6, [1, 10]), pass_estimates([(10, 9)] * 2, [1])
    _print_estimates("job", [("pass@k", all_of_them), ("easy", easy)])
    _, _, header, _, *rows = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in row.strip("┃│").replace("┃", "│").split("│")]
             for row in (header, *rows) if "│" in row or "┃" in row]  # fmt: skip
    assert cells[0] == ["group", "measure", "mean", "95% interval", "problems"]
    assert [row[:2] for row in cells[1:]] == [
        ["all", "pass@1"],
        ["all", "pass@10"],
        ["easy", "pass@1"],
    ]
    assert [row[-1] for row in cells[1:]] == ["6", "6", "2"]
