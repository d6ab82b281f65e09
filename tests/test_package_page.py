"""setup.py: the README as a package index shows it, with no file of the repository beside it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
ADDRESS = "https://example.org/sharegen"


def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


page = setup().page


def test_links_and_pictures_become_addresses() -> None:
    said = page("[install](docs/install.md#gpu), ![tree](docs/tree.svg)", ADDRESS, "1.2.3")
    assert f"[install]({ADDRESS}/blob/v1.2.3/docs/install.md#gpu)" in said
    assert f"![tree]({ADDRESS}/raw/v1.2.3/docs/tree.svg)" in said


def test_without_an_address_the_text_says_which_file_is_meant() -> None:
    said = page("[how](docs/install.md#gpu), [LICENSE](LICENSE), ![a tree](tree.svg)", None, "1")
    assert said == "how (docs/install.md), LICENSE, *a tree*"


def test_a_picture_in_two_themes_has_two_addresses_or_its_words() -> None:
    source = '<picture>\n<source srcset="b.svg">\n<img alt="Speed" src="a.svg">\n</picture>'
    said = page(source, ADDRESS, "1")
    assert f'srcset="{ADDRESS}/raw/v1/b.svg"' in said and f'src="{ADDRESS}/raw/v1/a.svg"' in said
    assert page(source, None, "1") == "*Speed*"


def test_addresses_and_places_on_the_page_stay() -> None:
    same = "[Ray](https://www.ray.io), [below](#limits)"
    assert page(same, ADDRESS, "1") == same


def test_no_link_of_the_readme_needs_a_clone() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for repository in (None, ADDRESS, ADDRESS + "/"):
        for target in re.findall(r"\]\(([^)\s]*)\)", page(readme, repository, "1")):
            assert target.startswith(("https://", "#")) and "//blob" not in target
