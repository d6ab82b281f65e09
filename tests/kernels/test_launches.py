"""What kernels are launched with, and what they name, is there: read from the code, without a GPU.

mypy sees neither into a kernel nor into `kernel[grid](...)`, and Triton's interpreter allows what
its compiler does not, as a global that is no constant.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = {
    f"sharegen.kernels.{path.stem}": path for path in sorted((ROOT / "kernels").glob("*.py"))
}
OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl"}
"""What a launch takes besides the kernel's own parameters."""

_INLINED = {"jit", "constexpr_function"}


@dataclass
class Module:
    """What a module's head defines: functions, the module of what is imported, constants."""

    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    values: dict[str, ast.expr | None] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list)


@cache
def module_of(path: Path) -> Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = Module(nodes=list(ast.walk(tree)))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.Assign):
            module.values |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            module.values[node.target.id] = node.value
        elif isinstance(node, ast.Import):
            module.imported |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in module.nodes:  # an import may be within a function
        if isinstance(node, ast.ImportFrom) and node.module:
            module.imported |= {alias.asname or alias.name: node.module for alias in node.names}
    return module


def decorators(function: ast.FunctionDef) -> set[str]:
    """The last names of its decorators: `jit` for `@triton.jit(...)`."""
    called = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
    return {d.attr for d in called if isinstance(d, ast.Attribute)}


def jitted(module: Module, name: str) -> ast.FunctionDef | None:
    """The function of that name, if Triton or Gluon compiles it."""
    home = KERNELS.get(module.imported.get(name, ""))
    found = (module_of(home) if home else module).functions.get(name)
    return found if found is not None and "jit" in decorators(found) else None


def starred(node: ast.Starred) -> int | None:
    """How many arguments `*x[:n]` gives; None where the code does not say."""
    cut = node.value.slice if isinstance(node.value, ast.Subscript) else None
    if isinstance(cut, ast.Slice) and cut.lower is None and isinstance(cut.upper, ast.Constant):
        return int(cut.upper.value)  # type: ignore[arg-type]
    return None


def mistakes(call: ast.Call, function: ast.FunctionDef, options: set[str]) -> Iterator[str]:
    """What of a call does not fit the parameters of the function."""
    names = [arg.arg for arg in function.args.args]
    given = [keyword.arg for keyword in call.keywords]
    counts = [starred(arg) if isinstance(arg, ast.Starred) else 1 for arg in call.args]
    least = sum(count or 0 for count in counts)
    yield from (f"unknown {name}" for name in given if name and name not in {*names, *options})
    positional = names[:least]
    yield from (f"{name} twice" for name in positional if name in given)
    if least > len(names):
        yield f"{least} positional arguments for {len(names)} parameters"
    if None not in counts and None not in given:
        required = names[: len(names) - len(function.args.defaults)]
        yield from (f"no {name}" for name in required[least:] if name not in given)


def calls(path: Path) -> Iterator[tuple[ast.Call, str, bool]]:
    """The calls of names in a module, and whether each is a launch: `name[grid](...)`."""
    for node in module_of(path).nodes:
        if isinstance(node, ast.Call):
            function, launched = node.func, isinstance(node.func, ast.Subscript)
            if isinstance(function, ast.Subscript):
                function = function.value
            if isinstance(function, ast.Name):
                yield node, function.id, launched


def test_calls_fit_the_parameters_of_kernels() -> None:
    """Launches, and calls within kernels; nothing else launches one."""
    wrong, seen = [], 0
    for path in KERNELS.values():
        for call, name, launched in calls(path):
            function = jitted(module_of(path), name)
            if function is None:
                continue
            seen += launched
            for mistake in mistakes(call, function, OPTIONS if launched else set()):
                wrong.append(f"{path.relative_to(ROOT)}:{call.lineno}: {name}: {mistake}")
    assert not wrong
    assert seen >= 24  # so they are found


def test_parameters_in_capitals_are_constants() -> None:
    for path in KERNELS.values():
        for function in module_of(path).functions.values():
            for arg in function.args.args if "jit" in decorators(function) else []:
                declared = ast.unparse(arg.annotation) if arg.annotation is not None else ""
                assert not arg.arg.isupper() or "constexpr" in declared, (function.name, arg.arg)


def bound(function: ast.FunctionDef) -> set[str]:
    """The names that a function binds: its parameters, and what it assigns."""
    names = {arg.arg for arg in function.args.args}
    stored = (n for n in ast.walk(function) if isinstance(n, ast.Name))
    return names | {n.id for n in stored if isinstance(n.ctx, ast.Store)}


def is_constant(module: Module, name: str) -> bool:
    """Whether a module's name is one that a compiled kernel may read."""
    if home := KERNELS.get(module.imported.get(name, "")):
        return is_constant(module_of(home), name)
    if name in module.imported or name in dir(builtins):
        return True
    if name in module.functions:
        return bool(decorators(module.functions[name]) & _INLINED)
    value = module.values.get(name)
    return value is not None and "constexpr" in ast.unparse(value)


@pytest.mark.parametrize("path", KERNELS.values(), ids=[path.stem for path in KERNELS.values()])
def test_names_inside_kernels_are_constants_or_kernels(path: Path) -> None:
    module = module_of(path)
    for function in module.functions.values():
        if "jit" not in decorators(function):
            continue
        own = bound(function)
        body = (node for statement in function.body for node in ast.walk(statement))
        read = {n.id for n in body if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        unknown = sorted(name for name in read - own if not is_constant(module, name))
        assert not unknown, function.name


def test_do_not_specialize_names_parameters() -> None:
    for path in KERNELS.values():
        for function in module_of(path).functions.values():
            for decorator in function.decorator_list:
                for keyword in decorator.keywords if isinstance(decorator, ast.Call) else []:
                    if keyword.arg in ("do_not_specialize", "do_not_specialize_on_alignment"):
                        named = set(ast.literal_eval(keyword.value))
                        assert named <= {arg.arg for arg in function.args.args}, function.name
