"""What is named in strings is there: modules, torch's operators, and what tests put something else
in the place of. No type checker sees these, and some are used on a GPU alone."""

from __future__ import annotations

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEYS = {"sharegen.typed"}
"""Keys of click's contexts, which look like modules."""

_DOTTED = re.compile(r"(sharegen|benchmarks|tests)(\.[A-Za-z_]\w*)+")


def files() -> Iterator[Path]:
    for folder in ("sharegen", "kernels", "benchmarks", "tests", "docs", "recipes", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


@cache
def trees() -> dict[Path, ast.Module]:
    """What every file says."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files()}


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    return {path: list(ast.walk(tree)) for path, tree in trees().items()}


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """A million objects, which no other test needs, are made once and gone at the end."""
    gc.disable()
    yield
    trees.cache_clear()
    nodes.cache_clear()
    gc.enable()


def home(dotted: str) -> Path | None:
    """The file or the package of a module, kernels included."""
    path = ROOT / dotted.replace(".", "/")
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return found.resolve()
    return path if path.is_dir() else None  # as tests/, a folder without __init__.py


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """What statements define, those below an `if`, a `try` or a `with` included."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from names_in([n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)])
        else:
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def defines(path: Path, name: str) -> bool:
    if path.is_dir():
        return home(f"{path.relative_to(ROOT).as_posix()}/{name}".replace("/", ".")) is not None
    beside = path.parent if path.name == "__init__.py" else None
    if beside is not None and any((beside / x).exists() for x in (name, f"{name}.py")):
        return True
    return name in names_in(trees()[path].body)


def is_there(dotted: str) -> bool:
    """Whether it is a module, or something in a module, or in a class of one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        if (path := home(".".join(parts[:end]))) is not None:
            return end == len(parts) or defines(path, parts[end])
    return False


@pytest.mark.slow
@pytest.mark.turn(2)
def test_modules_named_in_strings_are_there() -> None:
    gone = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path, found in nodes().items()
        for node in found
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if _DOTTED.fullmatch(node.value) and node.value not in KEYS
        if not node.value.endswith((".py", ".md", ".toml", ".json", ".jsonl", ".yaml", ".svg"))
        if not is_there(node.value)
    ]
    assert not gone


def operators() -> set[str]:
    """The names of operators that are made of functions."""
    return {
        node.args[0].value.partition("::")[2]
        for found in nodes().values()
        for node in found
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.library.custom_op"
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    }


_DEFINED = re.compile(r"(\w+)\(.*\) -> ")  # torch.library.Library.define("name(Tensor x) -> ...")


def test_operators_that_are_used_are_registered() -> None:
    strings = [n.value for found in nodes().values() for n in found if isinstance(n, ast.Constant)]
    defined = {m[1] for s in strings if isinstance(s, str) and (m := _DEFINED.match(s))}
    used: dict[str, Path] = {}
    for path, found in nodes().items():
        if "torch.ops.sharegen" not in path.read_text(encoding="utf-8"):
            continue
        ours = {"torch.ops.sharegen"}
        for node in found:
            if isinstance(node, ast.Assign) and ast.unparse(node.value) == "torch.ops.sharegen":
                ours |= {ast.unparse(target) for target in node.targets}
        for node in found:
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ours:
                used[node.attr] = path
    assert used
    known = operators() | defined
    assert not {name: path for name, path in used.items() if name not in known}


def test_fake_operators_take_what_the_real_ones_take() -> None:
    for path, tree in trees().items():
        functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
        fakes: dict[str, list[ast.FunctionDef]] = defaultdict(list)
        for function in (f for f in tree.body if isinstance(f, ast.FunctionDef)):
            for decorator in function.decorator_list:
                owner, _, kind = ast.unparse(decorator).rpartition(".")
                if kind == "register_fake":
                    fakes[owner].append(function)
        for real, others in fakes.items():
            assert real in functions or real in names_in(tree.body), f"{path}: {real}"
            if real in functions:
                args = [arg.arg for arg in functions[real].args.args]
                for other in others:
                    assert [arg.arg for arg in other.args.args] == args, f"{path}: {real}"


def replaced(path: Path) -> Iterator[tuple[int, str]]:
    """`monkeypatch.setattr(module, "name", ...)` in a test: the line, and the dotted name."""
    imported: dict[str, str] = {}
    for node in nodes()[path]:
        if isinstance(node, ast.ImportFrom) and node.module:
            imported |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in nodes()[path]:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("ch.setattr",)):
            owner, name = (*node.args, None, None)[:2]
            if isinstance(owner, ast.Name) and isinstance(name, ast.Constant):
                yield node.lineno, f"{imported.get(owner.id, '')}.{name.value}"


def test_what_tests_replace_is_there() -> None:
    gone = [
        f"{path.relative_to(ROOT)}:{line}: {dotted}"
        for path in trees()
        for line, dotted in replaced(path)
        if dotted.startswith(("sharegen.", "benchmarks."))
        if home(dotted.rpartition(".")[0]) is not None and not is_there(dotted)
    ]
    assert not gone


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("engine.engine", True),
        ("engine.engine.Engine", True),
        ("engine.engine.Motor", False),
        ("kernels.merge.merge_partials", True),
        ("motor", False),
    ],
)
def test_names_are_looked_up(name: str, there: bool) -> None:
    assert is_there(f"sharegen.{name}") is there
