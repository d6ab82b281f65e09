"""What lies in examples/ runs, and says what it promises."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str, folder: Path) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def share(text: str, name: str) -> float:
    found = re.search(rf"^{name}\s.*?([\d.]+)%", text, re.MULTILINE)
    assert found is not None, text
    return float(found[1])


def test_an_arithmetic_verifier() -> None:
    verify = runpy.run_path(str(EXAMPLES / "tree_search.py"))["verify"]
    assert verify("", ["3*4=12 eggs, 12-5=7 left."]) == 1.0
    assert verify("", ["3*4=12", "12-5=6 and 6/2=3"]) == 0.5
    assert verify("", ["8/0=1"]) == 0.0
    assert verify("", ["No numbers here."]) == 1.0


@pytest.mark.slow
@pytest.mark.turn(10)
def test_the_search_beats_the_vote_at_as_many_tokens(tmp_path: Path) -> None:
    said = run("tree_search.py", "--problems", "24", folder=tmp_path)
    assert share(said, "search") > share(said, "vote")
    search, vote = (int(n.replace(",", "")) for n in re.findall(r"tokens ([\d,]+)", said))
    assert search <= vote  # the vote's are rounded up


@pytest.mark.slow
@pytest.mark.turn(10)
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl")
def test_grpo_trains(tmp_path: Path) -> None:
    """That its accuracy rises takes minutes: docs/guides/training.md has what it came to."""
    said = run("grpo_arithmetic.py", "--steps", "1", "--held-out", "8", folder=tmp_path)
    assert share(said, "before") > 30 and share(said, "after") > 30


@pytest.mark.slow
def test_self_consistency(tmp_path: Path) -> None:
    said = run("self_consistency.py", "--problems", "12", "--samples", "8", folder=tmp_path)
    assert share(said, "the vote") >= share(said, "one sample") > 30


@pytest.mark.slow
def test_a_long_document(tmp_path: Path) -> None:
    (tmp_path / "text.md").write_text("The hens lay 4 eggs a day. " * 40)
    questions = ["How many eggs?", "Who lays them?", "When?"]
    said = run("long_document.py", "text.md", *questions, folder=tmp_path)
    asked, computed = re.findall(r"\d[\d,]*\b", said.splitlines()[-1])
    assert all(question in said for question in questions)
    assert int(computed.replace(",", "")) < int(asked.replace(",", "")) / 2


@pytest.mark.slow
def test_code_sampling(tmp_path: Path) -> None:
    said = run("code_sampling.py", "--samples", "2", folder=tmp_path)
    assert "pass@1" in said


@pytest.mark.slow
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra examples")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PROBLEMS", "6")
    monkeypatch.setenv("SAMPLES", "3")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(EXAMPLES / "votes.ipynb", as_version=4)
    client = nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert (tmp_path / "votes.svg").stat().st_size > 1000


def long_document(document: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, object]:
    """What it prints, and with what it exits; in this process, which has imported what it needs."""
    path = EXAMPLES / "long_document.py"
    code: object = 0
    before, sys.argv = sys.argv, [str(path), document, "What is it?", "Who is it for?"]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
    return capsys.readouterr().out, code


def test_a_long_document_as_its_docstring_says(capsys: pytest.CaptureFixture[str]) -> None:
    said = (EXAMPLES / "long_document.py").read_text(encoding="utf-8")
    found = re.search(r"long_document.py (\S+) \"What is it\?\" \"Who is it for\?\"\n", said)
    assert found is not None
    out, code = long_document(str(ROOT / found[1]), capsys)
    assert code == 0 and "prompt tokens" in out


def test_a_document_that_is_too_long_or_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "long.txt").write_text("The hens lay 4 eggs a day. " * 900)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\xff")
    for name, why in (("long.txt", "the model's context holds"), ("none.txt", "No such file"),
                      ("odd.txt", "can't decode")):  # fmt: skip
        out, code = long_document(str(tmp_path / name), capsys)
        assert out == "" and isinstance(code, str) and "\n" not in code
        assert name in code and why in code
