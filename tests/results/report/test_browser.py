"""The page in a real browser, where there is one: its script runs under its own policy."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sharegen.results.report import page
from sharegen.results.report.measure import measure
from sharegen.results.report.outcomes import read_run
from sharegen.results.report.pictures import pictures
from tests.results.report_journals import HOSTILE, write_maths

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_runs_and_hostile_text_does_not(tmp_path: Path) -> None:
    assert BROWSER is not None
    run = measure(read_run(write_maths(tmp_path / "run.jsonl", problems=70), "run"))
    path = tmp_path / "page.html"
    path.write_bytes(page.render([run], pictures([run]), {"test/1": HOSTILE}, [None]))
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=20000", "--dump-dom", f"{path.as_uri()}#problem=test%2F1"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert len(re.findall(r'<button type="button" class="open"', dom)) == 50
    assert "70 problems" in dom and "page 1 of 2" in dom
    (dialog,) = re.findall(r"<dialog[^>]* open.*?</dialog>", dom, flags=re.DOTALL)
    assert "Problem test/1</h2>" in dialog and len(re.findall('class="sample"', dialog)) == 10
    escaped = HOSTILE.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert dialog.count(escaped) == 2  # as the question and as the first completion
    assert "<img" not in dom and dom.count("<script") == 3
