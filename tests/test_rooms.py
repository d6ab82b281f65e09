"""The house: no circle of imports, which room may know which, and what runs without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

# A room and the others that it may know, late and type-only imports included.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "common": {"errors"},
    "kernels": set(),
    "engine/core": {"common", "errors", "kernels"},
    "engine/text": {"engine/core"},
    "engine/cache": {"engine/core"},
    "engine/grammar": {"engine/core", "engine/text", "common", "errors"},
    "engine/schedule": {"engine/core", "engine/cache", "kernels", "errors"},
    "engine/sample": {"engine/core", "engine/text", "kernels", "errors"},
    "engine/model": {"kernels", "common", "errors"},
    "engine/execute": {"engine/core", "engine/model", "engine/sample", "kernels", "errors"},
    "engine/loop": {  # and of the engine's top its configuration and what is prepared
        "engine", "engine/core", "engine/text", "engine/cache", "engine/schedule",
        "engine/grammar", "engine/model", "engine/execute", "kernels", "common", "errors",
    },
    "engine": {
        "engine/core", "engine/loop", "engine/cache", "engine/schedule",
        "engine/grammar",
        "engine/model", "engine/execute", "kernels", "common", "errors",
    },
    "engine/parallel": {
        "engine/core", "engine", "engine/cache", "engine/model", "engine/execute", "common",
        "errors", "version",
    },
    "workload": {"common", "errors"},
    "results": {"common", "errors"},
    "job": {
        "engine/core", "engine", "engine/cache", "engine/schedule", "engine/model",
        "engine/execute", "engine/parallel", "engine/text", "kernels", "workload", "results",
        "common", "errors",
    },
    "serve": {
        "engine/core", "engine", "engine/parallel", "engine/text", "job", "prompts", "workload",
        "results", "common", "errors",
    },
    "llm": {
        "engine/core", "engine", "engine/cache", "engine/model", "engine/parallel",
        "outputs", "prompts", "workload", "results", "common", "errors",
    },
    "outputs": {"engine/core", "engine/text", "common", "errors"},
    "prompts": {"engine/core", "workload", "errors"},
    "version": set(),
    "sharegen": {"engine/core", "llm", "outputs", "common", "version"},
    "lm_eval": {
        "engine/core", "llm", "engine/cache", "engine/model", "workload", "results", "common",
        "errors",
    },
    "trl": {"engine/core", "llm", "outputs", "common", "errors"},
    "as_vllm": {"common", "engine/core", "llm", "outputs", "prompts", "version"},
    "bench": {
        "engine/core", "engine", "engine/cache", "engine/model", "engine/execute",
        "engine/parallel",
        "kernels", "job", "workload", "results", "common",
        "errors",
    },
    "__main__": {"cli", "job", "common"},
    "cli": {
        "engine", "bench", "job", "lm_eval", "serve", "workload", "results", "common", "sharegen",
        "errors",
    },
}  # fmt: skip


def modules() -> dict[str, Path]:
    """All modules of sharegen and of its kernels, by name."""
    found = {}
    for folder, package in (("sharegen", "sharegen"), ("kernels", "sharegen.kernels")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if any(part.is_symlink() for part in path.parents):
                continue  # the kernels, which are read where they lie
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join((package, *parts))] = path
    return found


MODULES = modules()


@cache
def imports(name: str) -> set[str]:
    """The modules that one imports, at its head, in a function or for its types alone."""
    return set(_imports(name))


def _imports(name: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in MODULES else module


@cache
def arrows() -> dict[str, set[str]]:
    """The modules of the house that each imports."""
    return {
        name: {other for other in imports(name) if other in MODULES and other != name}
        for name in MODULES
    }


def room(name: str) -> str:
    """engine/cache, job, ...; what lies at the top of a wing is the wing's."""
    parts = name.split(".")[1:]
    if not parts:
        return "sharegen"
    if parts[0] != "engine":
        return parts[0]
    is_room = len(parts) > 2 or (MODULES[name].name == "__init__.py" and len(parts) == 2)
    return f"engine/{parts[1]}" if is_room else "engine"


def ordered(graph: Mapping[str, Collection[str]]) -> bool:
    """Whether a graph has no circle: what knows nothing of the rest goes, again and again."""
    left = {name: set(others) for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    return not left


def test_no_circle_of_imports() -> None:
    assert ordered(arrows())


def test_no_circle_of_folders() -> None:
    """What lies side by side in a folder, files and folders, is in one order."""
    folders = {name.rpartition(".")[0] for name in MODULES} - {""}
    for folder in folders:
        level = len(folder.split(".")) + 1
        inside = {name for name in MODULES if name.startswith(f"{folder}.")}
        graph: dict[str, set[str]] = {}
        for name in inside:
            part = ".".join(name.split(".")[:level])
            others = {".".join(each.split(".")[:level]) for each in arrows()[name] & inside}
            graph.setdefault(part, set()).update(others - {part})
        assert ordered(graph), f"{folder}: {graph}"


def test_rooms_know_only_those_they_may() -> None:
    for name, others in arrows().items():
        for other in others:
            known = {room(other)} - {room(name)}
            assert known <= ALLOWED[room(name)], f"{name} imports {other}"


WITHOUT_TORCH = {"engine/core", "engine/schedule", "engine/cache", "engine/text", "engine/grammar"}


def inner_room(name: str) -> str:
    """A subfolder of the model's floor, or a module at its top, which is a room of its own."""
    return name.split(".")[3]


def test_no_circle_among_the_rooms_of_the_model() -> None:
    """What knows no other room goes, again and again: nothing may be left."""
    here = [name for name in MODULES if room(name) == "engine/model" and name.count(".") > 2]
    left: dict[str, set[str]] = {inner_room(name): set() for name in here}
    for name in here:
        known = {inner_room(other) for other in arrows()[name] & set(here)}
        left[inner_room(name)] |= known - {inner_room(name)}
    while free := [name for name, others in left.items() if not others]:
        for name in free:
            del left[name]
        for others in left.values():
            others.difference_update(free)
    assert not left


def files(folder: str) -> int:
    return len(list((ROOT / "sharegen" / folder).glob("*.py")))


def test_floors_have_few_files() -> None:
    """A floor of many files side by side has rooms that nobody drew yet."""
    rooms = [room for room in (ROOT / "sharegen/results").iterdir() if room.name[0] != "_"]
    assert files("results") == 1 and len(rooms) <= 9  # with __init__.py
    assert files("engine") <= 14 and files("engine/model") <= 16
    for inner in (ROOT / "sharegen/engine/model").iterdir():
        assert not inner.is_dir() or files(f"engine/model/{inner.name}") <= 14


def test_who_decides_needs_no_torch() -> None:
    """The scheduler, the cache and the text import where there is no torch at all."""
    names = [name for name in MODULES if room(name) in WITHOUT_TORCH]
    assert len(names) > 12
    blocked = ("torch", "transformers", "triton")
    lines = [
        "import sys",
        *(f"sys.modules[{name!r}] = None" for name in blocked),
        *(f"import {name}" for name in names),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_results_import_no_torch() -> None:
    for name in MODULES:
        if room(name) == "results":
            assert not {"torch", "transformers"} & {other.split(".")[0] for other in imports(name)}


def test_the_wheel_measures_little() -> None:
    """What papers and trials need is in `benchmarks/`, which a wheel leaves out."""
    lines = [
        line
        for path in (ROOT / "sharegen" / "bench").glob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) <= 2500
