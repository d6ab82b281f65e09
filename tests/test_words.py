"""Words that the project does not use: the field has better ones, one word for one meaning.

The list holds in names, comments, docstrings and messages of the package, its kernels and its
benchmarks, and on pages. A name is taken apart at capitals and underscores, so that `_hired` is
`hired`. Dated notes may say what they said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

NOT_USED = {
    "hang on": "depend on",
    "hangs on": "depends on",
    "narrow": "FP8 block; of a search: tighten",
    "narrowed": "in FP8",
    "narrower": "in FP8",
    "bundle": "full-precision block",
    "bundles": "full-precision blocks",
    "stretch": "unshared node; of text or memory: range",
    "stretches": "unshared nodes; of text or memory: ranges",
    "reads apart": "reads per sequence",
    "read apart": "read per sequence",
    "seat": "admit",
    "seats": "admits",
    "seated": "admitted",
    "unseated": "without a row",
    "vacate": "evict",
    "hole": "empty row, gap",
    "holes": "empty rows, gaps",
    "turns over": "can_overlap",
    "wants rest": "needs_sync",
    "at rest": "is_idle",
    "due": "required",
    "followers": "tensor-parallel workers",
    "cutting": "shard",
    "staff": "engine spec",
    "staffed": "started",
    "hire": "start",
    "hired": "started",
    "dismiss": "stop",
    "orphan": "unowned",
    "orphans": "unowned",
    "thief": "idle worker",
    "strangers": "untrusted",
    "remark": "log",
    "remarks": "log",
    "comes along": "is bundled",
    "come along": "are bundled",
    "ships": "is bundled",
}
"""Each word, and what to say."""

ELSEWHERE = {
    "sharegen/results/report": {"bundle", "bundles"},  # of the page's data, as web pages have
}
"""Words that mean something else in a folder, where the field calls that so."""

NOT_YET: set[str] = set()
"""Folders that still say some of them. Take one out when it says none: the list is to be empty."""

_METHODS = re.compile(r"\.(narrow|r?partition)\(")  # torch's, str's
_SEAMS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_WORD = re.compile(r"[A-Za-z]+")


def _files() -> Iterator[Path]:
    for folder in ("sharegen", "kernels", "benchmarks"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    yield from sorted((ROOT / "docs").glob("*.md"))


def said(text: str) -> set[str]:
    """The words of the list that a text says."""
    words = _WORD.findall(_SEAMS.sub(" ", _METHODS.sub("(", text)).lower())
    spoken = f" {' '.join(words)} "
    return {word for word in NOT_USED if f" {word} " in spoken}


def found(file: Path) -> dict[str, str]:
    """What a file says of the list, each with what to say instead."""
    place = file.relative_to(ROOT).as_posix()
    allowed = {w for folder, words in ELSEWHERE.items() if place.startswith(folder) for w in words}
    return {w: NOT_USED[w] for w in said(file.read_text(encoding="utf-8")) - allowed}


def test_words_that_are_not_used() -> None:
    problems = {str(file.relative_to(ROOT)): words for file in _files() if (words := found(file))}
    assert not problems


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It hangs\non the seed.", {"hangs on"}),
        ("self._hired += 1", {"hired"}),
        ("class NarrowKV:", {"narrow"}),
        ("x.narrow(1, 0, 2)", set()),
        ("SEATS = turns_over", {"seats", "turns over"}),
        ("a bundled model, a stretcher, residue", set()),
    ],
)
def test_words_are_found_whole(text: str, words: set[str]) -> None:
    assert said(text) == words


def test_folders_with_words_of_their_own_are_there() -> None:
    assert all((ROOT / folder).is_dir() for folder in ELSEWHERE)


def docstrings(file: Path) -> Iterator[tuple[str, str]]:
    """The docstrings of a file's module, classes and functions, with their names."""
    nodes: list[ast.stmt | ast.Module] = [ast.parse(file.read_text(encoding="utf-8"))]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "name", "module"), text
        nodes += [inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)]


def test_no_docstring_begins_with_of() -> None:
    """A sentence that begins so has neither a subject nor a verb in most cases."""
    problems = [
        f"{file.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for file in _files()
        if file.suffix == ".py"
        for name, text in docstrings(file)
        if text.startswith("Of ")
    ]
    assert not problems


def test_the_glossary_stays_short() -> None:
    """What needs more rows than this says its words where they are used."""
    rows = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8").splitlines()
    words = [row for row in rows if row.startswith("| ") and not row.startswith("| word")]
    assert 0 < len(words) <= 20
