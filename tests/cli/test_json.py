"""`--json`: one object on stdout, with the keys of docs/reference/formats.md; rows piped in."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROWS, Command
from tests.results.report_journals import write_maths


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def parsed(sharegen: Command, *arguments: object) -> dict[str, Any]:
    ran = sharegen(*arguments, "--json")
    assert ran.code == 0, ran.err
    return json.loads(ran.out)  # the whole of it


def test_plan(sharegen: Command, job: list[object]) -> None:
    job = ["plan", *(argument for argument in job[1:] if argument not in ("-o", "out.jsonl"))]
    found = parsed(sharegen, *job)
    assert (found["problems"], found["samples"], found["max_tokens"]) == (6, 18, 8)
    assert found["computed"] < found["asked"] and found["branches"][0]["problems"] == 6
    assert f"{found['asked']:,} prompt tokens as asked" in sharegen(*job).out.replace("\n", " ")
    cut = parsed(sharegen, *job, "--shards", 2)
    assert [part["shard"] for part in cut["shards"]] == [1, 2]
    assert sum(part["samples"] for part in cut["shards"]) == 18
    assert cut["copied"] >= 0 and cut["imbalance"] >= 1


def test_score(sharegen: Command, tmp_path: Path) -> None:
    write_maths(tmp_path / "a.jsonl")
    [scored] = parsed(sharegen, "score", "a.jsonl", "--k", 3, "--k", 1)["jobs"]
    assert scored["results"] is None and scored["files"] == ["a.jsonl"]
    kinds = [(each["measure"], each["k"]) for each in scored["estimates"]]
    assert kinds == [("pass@k", 1), ("pass@k", 3), ("maj@k", 1), ("maj@k", 3)]
    for each in scored["estimates"]:
        assert each["group"] == "all" and 0 <= each["low"] <= each["mean"] <= each["high"] <= 1
    table = sharegen("score", "a.jsonl", "--k", 3).out
    assert "pass@3" in table and "pass@1" not in table


def test_the_page_of_formats_names_every_key(
    sharegen: Command, tmp_path: Path, job: list[object]
) -> None:
    write_maths(tmp_path / "a.jsonl")
    plan = ["plan", *(argument for argument in job[1:] if argument not in ("-o", "out.jsonl"))]
    page = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text()
    said = page[page.index("## JSON for programs") :]
    scored = parsed(sharegen, "score", "a.jsonl")
    planned = parsed(sharegen, *plan)
    for found in (planned, planned["branches"][0], parsed(sharegen, *plan, "--shards", 2),
                  scored, scored["jobs"][0], scored["jobs"][0]["estimates"][0]):  # fmt: skip
        for key in found:
            assert f"`{key}`" in said, key


def test_rows_that_are_piped_in(
    sharegen: Command, job: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = job.index("--dataset")
    job = [*job[: at + 1], "-", *job[at + 2 : -2], "-q"]
    rows = "".join(json.dumps(row) + "\n" for row in ROWS[3:6])
    piped(monkeypatch, rows)
    first = sharegen(*job)
    assert first.code == 0, first.err
    path = Path(first.out.strip())
    assert path.parent == Path("runs") and len(path.read_text().splitlines()) == 9
    piped(monkeypatch, rows)
    again = sharegen(*job, "-n", 4)  # the same rows: the same job, which goes on
    assert again.out == first.out and len(path.read_text().splitlines()) == 12
    piped(monkeypatch, rows + json.dumps(ROWS[6]) + "\n")
    assert sharegen(*job).out == first.out  # with one row more, which extends it
    piped(monkeypatch, "".join(json.dumps(row) + "\n" for row in ROWS[5:8]))
    assert sharegen(*job).out != first.out
    assert "Tom has 6 apples" in sharegen("show", path, "-p", 0).out


def test_nothing_piped_in(
    sharegen: Command, job: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    piped(monkeypatch, "  \n")
    ran = sharegen(*job, "--dataset", "-")
    assert (ran.code, ran.err) == (1, "sharegen: error: --dataset -: standard input is empty\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    ran = sharegen(*job, "--dataset", "-")
    assert ran.code == 2 and "nothing is piped in" in ran.err
