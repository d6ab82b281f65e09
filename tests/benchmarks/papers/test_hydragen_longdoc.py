"""Questions about a document, by each way: the same answers, and as often as asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.experiment import Row, Settings
from benchmarks.papers.hydragen_longdoc import EXPERIMENT, charts, rows
from tests.tiny import save_tiny_model


@pytest.mark.slow
def test_questions_by_each_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    document, facts = tmp_path / "war.txt", tmp_path / "facts.jsonl"
    document.write_text("It rained. So it was! " * 6, encoding="utf-8")
    facts.write_text(
        "".join(f'{{"fact": "{n} is.", "question": "Is {n}?", "answer": "{n}"}}\n' for n in "abcd"),
        encoding="utf-8",
    )
    settings = Settings(
        torch.device("cpu"), torch.float32, quick=True, repeats=1, model=str(model),
        document=document, facts=facts, questions=(1, 3),
    )  # fmt: skip
    capsys.readouterr()
    found: list[Row] = []
    for row in rows(settings):
        EXPERIMENT.add(row, found)
    assert [(row["questions"], row["facts"]) for row in found] == [(1, 2), (3, 2)]
    for row in found:
        assert min(row[way] for way in ("sharegen", "each", "nothing", "ceiling")) > 0
        assert row["sharegen_accuracy"] == row["each_accuracy"] == row["nothing_accuracy"]
        assert "ceiling_accuracy" not in row
    [chart] = charts(found)
    assert [len(series.points) for series in chart.series] == [2, 2, 2, 2]
    assert capsys.readouterr().err == ""
