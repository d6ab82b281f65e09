"""How to install what is missing: a form that works from a clone and from a wheel."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sharegen.common import extras

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
NOT_ON_AN_INDEX = re.compile(r"sharegen\[")


@pytest.mark.parametrize("extra", ["ray", "math", "lm-eval", "quantised", "structured"])
def test_the_packages_are_named_as_the_extra_has_them(extra: str) -> None:
    said = extras.install(extra)
    for package in EXTRAS[extra]:
        name = re.split(r"[<>=]", package)[0]
        assert f"'{name}" in said  # their bounds may stand in another order
    assert "pip install '" in said and said.count("'") == 2 * len(EXTRAS[extra])


def test_pip_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extras.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"{tmp_path}/bin/{name}")
    assert extras.install("adapter").startswith("pip install 'peft>=")
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert extras.install("adapter").startswith(f"{tmp_path}/bin/python -m pip install 'peft>=")
    monkeypatch.setattr(extras.shutil, "which", lambda name: None)
    assert extras.install("adapter").startswith(f"{tmp_path}/bin/python -m pip install 'peft>=")


def test_a_folder_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", unknown)
    assert extras.install("ray").endswith("pip install '.[ray]' in a clone of sharegen")


def test_nothing_tells_to_install_from_an_index_that_has_no_sharegen() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    for path in [*pages, *(ROOT / "sharegen").rglob("*.py")]:
        for line in path.read_text(encoding="utf-8").splitlines():
            if NOT_ON_AN_INDEX.search(line):
                assert path.name == "extras.py", f"{path}: {line}"


def test_a_page_says_what_each_extra_is_for() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert "install.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for extra in EXTRAS:
        assert f"`{extra}`" in page
    for needed in ("driver", "torch.cuda.is_available()", "--index-url"):
        assert needed in page
