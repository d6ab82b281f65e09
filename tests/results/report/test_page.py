"""The page: whole, self-contained, and no completion can be more than text in it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sharegen.results.report import page
from sharegen.results.report.embed import BUNDLE_SIZE
from sharegen.results.report.measure import Measured, measure
from sharegen.results.report.outcomes import read_run
from sharegen.results.report.pictures import pictures
from sharegen.results.scoring.score_file import scores_path
from tests.results.report_journals import (
    HOSTILE,
    sample,
    write_code,
    write_lines,
    write_maths,
    write_run_file,
)


class Elements(HTMLParser):
    """Every element of a page with its attributes and the text right inside it."""

    def __init__(self, text: str):
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs), []))
        self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.all[-1][2].append(data)

    def named(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attrs, "".join(text)) for name, attrs, text in self.all if name == tag]


def rendered(*runs: Measured, prompts: dict[str, str] | None = None) -> str:
    content = page.render(runs, pictures(runs), prompts or {}, [None] * len(runs))
    return content.decode()


def data(text: str) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """The index and the bundles, as the page's script reads them."""
    scripts = {attrs.get("id"): inside for attrs, inside in Elements(text).named("script")}
    index = json.loads(scripts["index"])
    names = sorted((n for n in scripts if n and n.startswith("bundle-")), key=lambda n: int(n[6:]))
    return index, [json.loads(gzip.decompress(base64.b64decode(scripts[n]))) for n in names]


def maths(folder: Path, name: str = "maths", **sizes: int) -> Measured:
    return measure(read_run(write_maths(folder / f"{name}.jsonl", **sizes), name))


def code(folder: Path, name: str = "code") -> Measured:
    return measure(read_run(write_code(folder / f"{name}.jsonl"), name))


def test_every_sample_is_in_the_page(tmp_path: Path) -> None:
    run = maths(tmp_path, problems=40, samples=12)
    index, bundles = data(rendered(run, prompts={"test/3": "How\n many?"}))
    assert index["ids"] == [outcome.problem_id for outcome in run.run.outcomes]
    assert index["snippets"][3] == "How many?" and index["snippets"][4] == ""
    for outcome, row in zip(run.run.outcomes, index["problems"][0], strict=True):
        samples, judged, right, winner, votes, cast, margin, ok, bundle, at = row
        assert (samples, judged, right) == (12, outcome.judged, outcome.right)
        assert winner == outcome.winner and votes == outcome.votes.get(winner, 0)
        assert cast == sum(outcome.votes.values())
        assert ok == outcome.vote_right
        assert margin is None or margin == pytest.approx(outcome.margin, abs=1e-3)
        details = bundles[bundle][at]
        assert [line[0] for line in details["samples"]] == list(range(12))
        for line, one in zip(details["samples"], outcome.samples, strict=True):
            assert line[1] == one.right and line[5] == one.record.answer
            assert line[-1] == one.record.completion
        assert {answer: n for answer, n, _ in details["votes"]} == outcome.votes


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """In completions, answers, ids, gold, prompts, names and settings."""
    path = tmp_path / "bad.jsonl"
    rows = [sample(HOSTILE, 0, HOSTILE, answer=HOSTILE, gold=HOSTILE)]
    rows.append(sample("surrogate", 0, "half \ud800 pair", answer="\udfff", gold="\ud834"))
    write_lines(path, rows)
    write_run_file(path, configuration={"model": HOSTILE, HOSTILE: ["\ud800"]})
    run = measure(read_run(path, HOSTILE))
    text = rendered(run, prompts={HOSTILE: HOSTILE})
    page_elements = Elements(text)
    assert not page_elements.named("img")
    kinds = [attrs.get("type") for attrs, _ in page_elements.named("script")]
    assert kinds == ["application/json", "text/plain", None]
    assert not any(name.startswith("on") for _, attrs, _ in page_elements.all for name in attrs)
    index, bundles = data(text)
    assert index["ids"] == [HOSTILE, "surrogate"] and index["gold"] == [HOSTILE, "\ud834"]
    assert bundles[0][0]["samples"][0][-1] == HOSTILE and bundles[0][0]["prompt"] == HOSTILE
    assert bundles[0][1]["samples"][0][-1] == "half \ud800 pair"


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    text = rendered(maths(tmp_path), code(tmp_path))
    elements = Elements(text)
    for _, attrs, _ in elements.all:
        assert "src" not in attrs
        for name in ("href", "xlink:href"):
            assert (attrs.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", text)
    (policy,) = (
        attrs["content"]
        for attrs, _ in elements.named("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    script = elements.named("script")[-1][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None and policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy


def test_the_page_can_be_used_by_everyone(tmp_path: Path) -> None:
    elements = Elements(rendered(maths(tmp_path), code(tmp_path)))
    ids = [attrs["id"] for _, attrs, _ in elements.all if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = {attrs.get("for") for attrs, _ in elements.named("label")}
    fields = [attrs for kind in ("input", "select") for attrs, _ in elements.named(kind)]
    assert fields and all(attrs["id"] in labels for attrs in fields)
    for attrs, inside in elements.named("button"):
        assert inside.strip() and attrs.get("type") == "button"
    for _, attrs, _ in elements.all:
        assert attrs.get("aria-labelledby", ids[0]) in ids
    anchors = [str(attrs["href"])[1:] for attrs, _ in elements.named("a")]
    assert anchors and set(anchors) <= set(ids)
    assert elements.named("html")[0][0]["lang"] == "en"


def test_runs_side_by_side(tmp_path: Path) -> None:
    """Problems are matched by id; one that a run lacks is a gap."""
    first, second = maths(tmp_path, "a", problems=3), maths(tmp_path, "b", problems=5, seed=1)
    text = rendered(first, second)
    index, _ = data(text)
    assert [run["name"] for run in index["runs"]] == ["a", "b"]
    assert index["ids"] == [f"test/{number}" for number in range(5)]
    assert [row is None for row in index["problems"][0]] == [False, False, False, True, True]
    assert None not in index["problems"][1]


def test_configuration_shows_what_differs(tmp_path: Path) -> None:
    runs = []
    for name, temperature in (("a", 0.7), ("b", 1.0)):
        path = write_maths(tmp_path / f"{name}.jsonl", problems=1, samples=2)
        sampling = {"temperature": temperature, "top_p": 1.0}
        write_run_file(path, configuration={"model": "<m>", "sampling": sampling})
        runs.append(measure(read_run(path, name)))
    text = rendered(*runs)
    differing = re.findall(r'<tr class="differs"><th scope="row">([\w.]+)', text)
    assert differing == ["sampling.temperature"]
    assert "<td>&lt;m&gt;</td>" in text
    assert "no run.json" in rendered(maths(tmp_path, "c", problems=1, samples=1))


@pytest.mark.slow
@pytest.mark.turn(10)
def test_fifty_thousand_completions_stay_small(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with open(path, "w") as file:
        for problem in range(500):
            for index in range(100):
                text = " ".join(str((problem * index * k) % 9973) for k in range(60))
                line = sample(f"p{problem}", index, text, answer=str(index % 3), gold="1")
                file.write(json.dumps(line) + "\n")
    text = rendered(measure(read_run(path, "big")))
    assert len(text) < 40e6
    index, bundles = data(text)
    assert len(index["ids"]) == 500 and len(json.dumps(index)) < 100_000
    assert sum(len(entry["samples"]) for bundle in bundles for entry in bundle) == 50_000
    assert max(len(json.dumps(bundle)) for bundle in bundles[:3]) < 2 * BUNDLE_SIZE


def test_the_page_says_when_where_and_how(tmp_path: Path) -> None:
    path = write_maths(tmp_path / "run.jsonl")
    made = {"date": "2026-11-22T05:49:13+00:00", "device": "NVIDIA H200", "host": "node<7>"}
    write_run_file(path, environment={**made, "command": "sharegen run gsm8k --system 'a & b'"})
    text = rendered(measure(read_run(path, "run")))
    assert "2026-11-22 05:49:13+00:00 · NVIDIA H200 · node&lt;7&gt;" in text
    assert "<code>sharegen run gsm8k --system &#x27;a &amp; b&#x27;</code>" in text


def test_a_program_says_why_it_did_not_compile_and_of_how_many_tests(tmp_path: Path) -> None:
    path = write_code(tmp_path / "code.jsonl", problems=1, samples=1)
    scores = scores_path(path)
    score = json.loads(scores.read_text())
    score |= {"result": "compile error", "passed": False, "tests_passed": 0, "tests_total": 12}
    scores.write_text(json.dumps(score | {"message": "line 2: expected ':'"}) + "\n")
    _, bundles = data(rendered(measure(read_run(path, "code"))))
    [line] = bundles[0][0]["samples"]
    assert line[6:10] == ["compile error", 0, 12, "line 2: expected ':'"]


def test_rows_show_what_is_their_own(tmp_path: Path) -> None:
    run = maths(tmp_path, problems=3)
    prompts = {
        "test/0": "Question: Who has 3 apples?\nAnswer:",
        "test/1": "Question: Who runs?\nAnswer:",
        "test/2": "Question: " + "long " * 80 + "\nAnswer:",
    }
    index, bundles = data(rendered(run, prompts=prompts))
    assert index["snippets"][:2] == ["Who has 3 apples?", "Who runs?"]
    assert len(index["snippets"][2]) == 160 and index["snippets"][2].startswith("long long")
    assert bundles[0][1]["prompt"] == prompts["test/1"]  # whole, where it is opened


def test_two_runs_are_compared_and_get_the_width(tmp_path: Path) -> None:
    text = rendered(maths(tmp_path, "a"), maths(tmp_path, "b", seed=1))
    assert '<body class="several">' in text and "95% paired interval" in text
    assert '<body class="several">' not in rendered(maths(tmp_path, "c"))
