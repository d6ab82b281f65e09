"""What is made of the results: fresh in the repository, and marked where rows differ."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.card.popular import SHAPE_TABLE
from benchmarks.measurement import Measurement
from benchmarks.tables.headline import THEMES, chart, headline, readme, speed_table
from benchmarks.tables.markdown import with_table
from benchmarks.tables.marks import FEW_EXPERTS, Marks, differences
from benchmarks.tables.page import page
from benchmarks.tables.popular import parts_table, popular_table
from benchmarks.tables.writing import ROOT, made
from sharegen.errors import DataError

PEER = {"name": "vLLM", "version": "0.24.0", "mode": "cascade", "tokens_per_second": 100.0}
OTHER = {"commit": "7654321"}


def row(**changes: Any) -> Measurement:
    card = {"kind": "gpu", "name": "NVIDIA H200", "power_limit_watts": 700}
    card |= changes.pop("card", {})
    versions = dict.fromkeys(("sharegen", "torch", "triton", "transformers", "driver", "cuda"), "1")
    return Measurement.model_validate(
        {
            "name": "x", "row": "llama3-8b-gsm8k-bf16", "kind": "job", "command": "sharegen bench",
            "date": date(2026, 11, 26), "commit": "1234567", "versions": versions, "card": card,
            "shape": "llama3-8b", "precision": "bf16", "numbers": {"tokens_per_second": 150.0},
            "workload": {"name": "gsm8k", "problems": 96, "samples": 32, "output": 128},
            "peers": [PEER | {"sitting": "same"}],
        } | changes
    )  # fmt: skip


def test_what_is_committed_is_what_would_be_made() -> None:
    for name, text in made().items():
        found = (ROOT / name).read_text(encoding="utf-8")
        assert found == text, f"{name}: run: python -m benchmarks tables"


def test_no_commit_stands_in_the_readme_s_table() -> None:
    assert "1234567" in page([row()])
    assert "1234567" not in speed_table([row()])


def test_rows_of_one_card_and_one_commit_have_no_marks() -> None:
    assert differences([row(), row()]) == [[], []]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"card": {"name": "NVIDIA H100"}}, "On another card: NVIDIA H100."),
        (
            OTHER | {"date": date(2026, 11, 20)},
            "Older code than most rows', measured on 2026-11-20.",
        ),
        (
            OTHER | {"date": date(2026, 11, 28)},
            "Newer code than most rows', measured on 2026-11-28.",
        ),
        (OTHER, "Other code than most rows', measured on 2026-11-26."),
        ({"busy": True}, "The machine did other work at the same time."),
        ({"few_experts": True}, FEW_EXPERTS),
        ({"published": "a page"}, "As published in a page."),
    ],
)
def test_a_row_that_differs_is_marked(changes: dict[str, Any], said: str) -> None:
    rows = [row(), row(), row(**changes)]
    assert differences(rows) == [[], [], [said]]
    assert f"(a) {said}" in page(rows)


def test_of_two_commits_with_as_many_rows_each_the_newer_one_is_compared_with() -> None:
    newer = row(commit="7654321", date=date(2026, 11, 28))
    said = differences([row(), newer])
    assert said == [["Older code than most rows', measured on 2026-11-26."], []]


def test_another_card_of_the_same_name_is_marked_where_it_is_known() -> None:
    one, other = row(card={"uuids": ["GPU-a"]}), row(card={"uuids": ["GPU-b"]})
    both = row(card={"uuids": ["GPU-b", "GPU-a"], "count": 2})
    said = differences([one, one, other, both, row()])
    assert said == [[], [], ["On another NVIDIA H200 than most rows."], [], []]


def test_the_readme_s_table_marks_other_cards_dates_and_sittings() -> None:
    card, peers = {"count": 2}, [PEER | {"sitting": "another"}]
    many = row(card=card, date=date(2026, 11, 20), commit="7654321", peers=peers)
    text = speed_table([row(), many])
    assert "| 150 | 100 (vLLM 0.24.0) | 1.50 |" in text
    assert "| 150 (a, b) | 100 (vLLM 0.24.0) (c) | 1.50 |" in text
    assert "measured on 2026-11-26, on an NVIDIA H200" in text
    assert "(a) On 2 of these cards." in text and "(b) Measured on 2026-11-20, with older" in text


def test_the_readme_s_table_tells_all_days_of_its_code() -> None:
    text = speed_table([row(), row(date=date(2026, 11, 28))])
    assert "measured on 2026-11-26 and 2026-11-28, on an NVIDIA H200" in text
    assert "(a)" not in text


def test_the_headline_takes_the_newest_row_that_has_a_peer() -> None:
    old, bare = row(date=date(2026, 11, 20)), row(peers=[])
    assert headline([old, row(), bare]) == [row()]
    assert headline([bare]) == []


def test_newer_code_without_a_peer_stands_in_a_column_of_its_own() -> None:
    card = {"name": "NVIDIA H100"}
    later = row(date=date(2026, 11, 27), card=card, peers=[], numbers={"tokens_per_second": 160.0})
    older = row(date=date(2026, 11, 20), card=card, peers=[])
    text = speed_table([row()], [row(), older, later])
    assert "| 150 | 100 (vLLM 0.24.0) | 1.50 | 160 |" in text
    assert "Newer code: on 2026-11-27, on an NVIDIA H100, without the peer." in text
    assert speed_table([row()], [row(), older]) == speed_table([row()])


def test_the_column_of_newer_code_marks_other_cards_and_code() -> None:
    names = ("llama3-8b-gsm8k-bf16", "llama3-8b-few-bf16", "llama3-8b-gsm8k-fp8", "x")
    beside = [row(row=name) for name in names]
    card, today = {"name": "NVIDIA H100"}, date(2026, 11, 28)
    later = [
        row(row=names[0], date=date(2026, 11, 27), card=card, peers=[]),
        row(row=names[1], date=today, card=card, peers=[], commit="7654321"),
        row(row=names[2], date=today, card=card, peers=[], commit="7654321abc"),
        row(row=names[3], date=today, card={"name": "NVIDIA L4"}, peers=[], commit="7654322"),
    ]
    text = speed_table(beside, beside + later)
    last = [line.split("|")[-2].strip() for line in text.splitlines()[2:6]]
    assert last == ["150 (a)", "150", "150", "150 (b, c)"]
    assert "on 2026-11-28, on an NVIDIA H100, without the peer." in text
    assert "(a) Measured on 2026-11-27, with older code. (b) On NVIDIA L4. (c) Measured" in text
    assert "2026-11-28, with other code." in text


def test_a_readme_without_its_markers_is_told_where_they_belong() -> None:
    with pytest.raises(DataError, match="table: speed"):
        readme("# sharegen\n", [row()])
    text = readme("a\n<!-- table: speed -->\nold\n<!-- end of table -->\nb\n", [row()])
    assert text.startswith("a\n<!--") and text.endswith("-->\nb\n") and "old" not in text
    assert readme(text, [row()]) == text


def popular(**changes: Any) -> Measurement:
    numbers = {
        "tokens_per_second": 150.0, "ceiling_tokens_per_second": 200.0, "step_ms": 20.0,
        "parts_ms": {"products": 12.0, "shared": 1.0, "suffix": 2.0, "norms": 0.5, "idle": 1.5},
    }  # fmt: skip
    return row(kind="ceiling", shape="phi-4", numbers=numbers, **changes)


def test_the_popular_shapes_are_all_there_measured_or_not() -> None:
    text = popular_table([popular(), row(shape="phi-4", date=date(2026, 11, 27))])
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()[2:]}
    assert list(lines) == [shape.title for shape in SHAPE_TABLE]
    assert lines["Phi-4"].startswith("| Phi-4 | bf16 | 150 | 200 | 75% | NVIDIA H200 |")
    assert "not measured | not measured" in lines["Gemma-3-12B"]
    without = popular_table([row(shape="phi-4"), popular(card={"count": 2}), row()])
    assert "| Phi-4 | bf16 | 150 | not measured |" in without
    few = popular_table([popular(few_experts=True)])
    assert "| Phi-4 | bf16 | 150 (a) |" in few and few.endswith(f"\n\n(a) {FEW_EXPERTS}")


def test_the_parts_of_a_step_are_a_table_of_their_own() -> None:
    lines = parts_table([popular(), row()]).splitlines()
    assert lines[0] == (
        "| shape | precision | step, ms | products | attention | norms, RoPE, gates | host |"
    )
    assert lines[2:] == ["| Phi-4 | bf16 | 20.0 | 12.0 | 3.0 | 0.5 | 1.5 |"]
    assert parts_table([row()]) == ""


def test_fp8_has_a_line_of_its_own_where_it_was_measured() -> None:
    text = popular_table([popular(), popular(precision="FP8", row="y")])
    assert text.count("| Phi-4 |") == 2 and "| Phi-4 | FP8 |" in text


def test_a_page_without_the_table_s_place_is_told_where_it_belongs() -> None:
    with pytest.raises(DataError, match=r"models\.md: .*table: popular"):
        with_table("# Models\n", "popular", "made", "models.md")


@pytest.mark.parametrize("name", THEMES)
def test_the_chart_says_its_numbers(name: str) -> None:
    svg = ElementTree.fromstring(chart([row(), row(row="x")], *THEMES[name]))
    words = [each.text or "" for each in svg.iter() if each.text]
    assert "Llama-3-8B gsm8k: 1.50 times" in words[0]
    assert words.count("1.50") == 2
    assert ElementTree.fromstring(chart([], *THEMES[name])) is not None


def test_marks_are_letters_in_the_order_of_their_need() -> None:
    marks = Marks()
    assert marks.of() == "" and marks.of("x", "y") == " (a, b)" and marks.of("y") == " (b)"
    assert marks.legend() == ["(a) x", "(b) y"]


def test_tables_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from benchmarks.tables.writing import made"
    done = subprocess.run([sys.executable, "-c", f"{code}; made()"], cwd=ROOT)
    assert done.returncode == 0
