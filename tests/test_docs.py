"""The pages that the code writes are those that it would write now, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sharegen.common.mappings import merge
from sharegen.workload.recipe import RECIPES, Job, recipe_names
from sharegen.workload.validation import validate
from tests.keys import keys
from tests.shown import in_blocks, in_text, parse, unknown_flags

DOCS = Path(__file__).parents[1] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


def words(page: str) -> list[str]:
    """A page without what the library that writes the help may change: kinds, rules, lines."""
    return re.sub(r"<[^>]*>|\[[^\]]*\]|[-=|]{2,}(?= )", " ", page).split()


HAND_WRITTEN = sorted(
    str(page.relative_to(DOCS))
    for folder in (".", "tutorial", "guides", "explanation")
    for page in (DOCS / folder).glob("*.md")
)


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_a_page_shows_commands_that_parse(name: str) -> None:
    """In a block every argument is one that the command takes; in a text every flag is."""
    page = (DOCS / name).read_text(encoding="utf-8")
    for line in in_blocks(page):
        parse(line)
    for line in in_text(page):
        if " --" in line:
            assert not unknown_flags(line), line


def test_messages_of_the_page_on_trouble_are_those_of_the_code() -> None:
    """What stands between dots and placeholders is in some string of the package."""
    files = sorted((DOCS.parent / "sharegen").rglob("*.py"))
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # a string in several lines
    page = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| message \|.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    messages = [found for table in tables for found in re.findall(r"^\| `([^`]+)`", table, re.M)]
    assert len(messages) > 8
    for message in messages:
        for words in re.split(r"\(?\.\.\.\)?", message):
            assert words.strip(" :,") in code, message


CONSTRAINTS = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("name", GENERATOR.PAGES)
def test_a_written_page_is_fresh(name: str) -> None:
    if name == "reference/commands.md" and f"typer=={version('typer')}" not in CONSTRAINTS:
        pytest.skip(f"typer {version('typer')} writes help in other words")
    found, fresh = (DOCS / name).read_text(encoding="utf-8"), GENERATOR.PAGES[name]()
    assert words(found) == words(fresh), "run: python docs/generate.py"


NOTES = DOCS / "notes"
PAGES = [
    page.relative_to(DOCS).as_posix()
    for page in sorted(DOCS.rglob("*.md"))
    if not page.is_relative_to(NOTES)
]


def test_every_page_but_the_notes_is_in_the_site_s_navigation() -> None:
    site = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        named = f": {page.relative_to(DOCS).as_posix()}\n" in site
        assert named != page.is_relative_to(NOTES), page


def linked(page: Path) -> list[str]:
    """What a page links to, pictures in HTML included, without addresses of other sites."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) + re.findall(
        r'src(?:set)?="([^"]*)"', text
    )
    return [link for link in found if not link.startswith("http")]


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md")]:
        for link in linked(page):
            assert (page.parent / link).is_file(), f"{page.relative_to(DOCS.parent)}: {link}"


def test_a_table_s_columns_have_names() -> None:
    """A reader who hears the page is told the name of a cell's column."""
    for page in DOCS.rglob("*.md"):
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for header, below in pairwise(text.splitlines()):
            if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", below):
                assert not re.search(r"\|\s*\|", header), f"{page.relative_to(DOCS)}: {header}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_is_for_and_where_to_go(name: str) -> None:
    """Its first line is a sentence, and its last section leads to other pages."""
    title, first, *_ = (DOCS / name).read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ") and "\n" not in title
    assert not first.startswith(("#", "```", "|", "-", "!", "<"))
    _, heading, last = (DOCS / name).read_text(encoding="utf-8").rpartition("\n## ")
    assert heading and last.startswith("Where to go next\n\n") and "](" in last


def test_the_readme_is_short_and_tells_no_history() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert not re.search(
        r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b", readme.replace("15915cd4", "")
    )


def test_the_schema_takes_the_recipes_and_no_other_keys() -> None:
    schema = Draft202012Validator(json.loads((DOCS / "recipe.schema.json").read_text("utf-8")))
    for name in recipe_names():
        recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
        assert not list(schema.iter_errors(recipe))
    for wrong in ({"foo": 1}, {"sampling": {"n": 1}}, {"presets": {"a": {"samplin": {}}}}):
        assert not schema.is_valid(wrong)


def properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every property of a JSON schema and of the schemas in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from properties(each)
    elif isinstance(schema, dict):
        named = schema.get("properties")
        yield from named.items() if isinstance(named, dict) else ()
        for name, each in schema.items():
            if name not in ("default", "examples"):
                yield from properties(list(each.values()) if name == "properties" else each)


def test_every_key_of_the_schema_is_described() -> None:
    found = list(properties(json.loads((DOCS / "recipe.schema.json").read_text("utf-8"))))
    assert len(found) > 80
    for name, schema in found:
        assert schema.get("description", "").endswith("."), name


SCHEMA = json.loads((DOCS / GENERATOR.SCHEMA).read_text("utf-8"))


def described(path: tuple[str, ...]) -> dict[str, Any]:
    """What the schema says of a key."""
    found: dict[str, Any] = SCHEMA
    for name in path:
        inner = [found, *found.get("anyOf", ()), *found.get("allOf", ())]
        sections = [
            SCHEMA["$defs"][each["$ref"].split("/")[-1]] for each in inner if "$ref" in each
        ]
        found = next(each for each in (found, *sections) if "properties" in each)
        found = found["properties"][name]
    return found


@pytest.mark.parametrize("path", list(keys(Job)), ids=".".join)
def test_every_key_of_the_schema_has_examples_that_load(path: tuple[str, ...]) -> None:
    least = {
        "prompt": {"text": "{{ question }}"},
        "answer": {"extract": "number", "patterns": ["x"], "gold": {"field": "answer"}},
    }
    examples = described(path)["examples"]
    for example in examples:
        values: Any = example
        for name in reversed(path):
            values = {name: values}
        if path[-1:] == ("template",) and "gold" in path:
            values["answer"]["gold"]["field"] = None
        recipe = merge(least, values) if path != ("prompt",) else least | values
        assert Draft202012Validator(SCHEMA).is_valid(recipe), example
        job = validate(Job, recipe, "an example")
        found: Any = job.model_dump() if path[0] != "prompt" else {"prompt": dict(job.prompt)}
        for name in path:
            found = found[name]
        assert found != described(path).get("default"), "an example shows another value"


def test_what_names_a_recipe_has_examples() -> None:
    for name in SCHEMA["properties"].keys() - Job.model_fields.keys():
        assert SCHEMA["properties"][name]["examples"]
