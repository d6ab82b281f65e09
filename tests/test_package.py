"""What is installed and what is documented: the wheel's lists, an instant start, the README."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import yaml

from sharegen import __version__
from sharegen.cli import main
from sharegen.workload.recipe import load_recipe, recipe_names
from tests.shown import EXAMPLE, blocks, commands, in_blocks, in_text, parse, split

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
NAMESPACES = {"sharegen.kernels", "sharegen.recipes", "sharegen.recipes.tinymath"}
"""Folders without `__init__.py`, because a top-level `kernels` package would break transformers."""
HEAVY = {"torch", "transformers", "datasets", "numpy", "pandas", "matplotlib", "triton", "ray"}
SHOWN = [*in_blocks(README), *in_text(README)]


def folder_of(package: str) -> Path:
    return ROOT / package.replace(".", "/")


def test_the_wheel_lists_every_package() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "sharegen").rglob("__init__.py")
    }
    assert set(SETUPTOOLS["packages"]) == found | NAMESPACES


def test_the_wheel_lists_every_other_file() -> None:
    folders = {folder_of(package): package for package in SETUPTOOLS["packages"]}
    found = {
        path
        for folder in folders
        for path in [*folder.iterdir(), *folder.glob("model/*")]
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    listed: set[Path] = set()
    for folder, package in folders.items():
        for pattern in SETUPTOOLS["package-data"].get(package, ()):
            matches = set(folder.glob(pattern))
            assert matches, f"{package}: {pattern} matches nothing"
            listed |= matches
    assert listed == found


def test_what_coverage_leaves_out_is_there() -> None:
    for pattern in PROJECT["tool"]["coverage"]["run"]["omit"]:
        assert pattern.startswith("*/"), pattern
        assert (ROOT / pattern.removeprefix("*/")).is_file(), pattern


def test_the_version_is_said_once() -> None:
    assert PROJECT["project"]["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("flags", [["--version"], ["-V"], ["version"]])
def test_the_version_is_printed(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "sharegen", "run", "-h"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("Usage: sharegen run")


def test_it_can_be_cited() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__ and cited["license"] == "Apache-2.0"


def test_the_recipes_and_their_model_are_package_data() -> None:
    recipes = resources.files("sharegen.recipes")
    names = {path.name for path in recipes.iterdir()}
    assert {f"{name}.yaml" for name in recipe_names()} <= names
    tinymath = recipes / "tinymath"
    assert len((tinymath / "test.jsonl").read_text(encoding="utf-8").splitlines()) == 200
    size = len((tinymath / "model" / "model.safetensors").read_bytes())
    assert 1_000_000 < size <= 12_000_000


def test_the_license_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


@pytest.mark.slow
def test_help_starts_without_what_is_heavy() -> None:
    program = f"""
import contextlib, io, sys
from sharegen.cli import main
for command in {[[], *(path for path, _ in commands())]!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([*command, "--help"])
print(*sorted({HEAVY!r} & set(sys.modules)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


@pytest.mark.slow
def test_a_job_runs_without_triton(tmp_path: Path) -> None:
    """As on macOS, where there is none."""
    program = f"""
import sys
sys.modules["triton"] = None
sys.path.insert(0, {str(ROOT)!r})
from sharegen.cli import main
main(["run", "self-consistency", "--limit", "1", "-n", "2", "--max-tokens", "4", "-o", "a.jsonl"])
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_each_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for path, _ in commands():
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([*path, "--help"])
        assert exit.value.code in (0, None)
        said = re.sub(r" \\\n +", " ", capsys.readouterr().out)  # an example may go on
        found = EXAMPLE.findall(said)
        assert found, f"sharegen {' '.join(path)} --help"
        for example in found:
            parse(example)


@pytest.mark.parametrize("line", SHOWN)
def test_the_readme_shows_commands_that_parse(line: str) -> None:
    parse(line)


def test_the_readme_names_recipes_and_presets_that_ship() -> None:
    for words in (split(line)[1:] for line in SHOWN):
        if words[0] in ("run", "plan") and words[1] != "RECIPE":
            recipe = load_recipe(words[1])
            dataset = words[words.index("--dataset") + 1] if "--dataset" in words else None
            if dataset is not None and "." not in dataset:
                assert dataset in recipe.presets


def test_the_readme_has_one_line_that_runs_and_one_that_tests() -> None:
    lines = [
        line for block in blocks(README, "sh") for line in block.splitlines() if " -m venv " in line
    ]
    assert [line.rpartition("&& ")[2] for line in lines] == [
        ".venv/bin/sharegen run self-consistency",
        ".venv/bin/python -m pytest -q -n 2",
    ]


def test_the_readme_links_to_files_that_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert links and not [link for link in links if not (ROOT / link).exists()]


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks(README, "python")
    model = str(ROOT / "recipes/tinymath/model")
    program, swapped = re.subn(r'LLM\("[^"]+"', f"LLM({model!r}", program)
    assert swapped == 1
    exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(len(ast.literal_eval(line)) == 8 for line in lines)
