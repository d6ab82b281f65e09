"""The process that runs a dataset's assertions on functions that live in another sandbox.

HumanEval's and MBPP's tests are code. It runs here, with the expected values in it, and the
program runs elsewhere: what the assertions call stands for the program's function (`exchange.py`),
and what comes back is compared here. An object that equals everything never gets here.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import sys
import types
from collections.abc import Iterator
from typing import Any, NoReturn

from . import wire
from .candidate import new_module, run_and_exit, silence
from .exchange import Peer, Unsupported
from .remote import coroutine, drawn, operations_of, stand_in

_NAME = "check"
_FUNCTIONS = ("cmath", "itertools", "math", "statistics")
_CLASSES = ("collections", "datetime", "decimal", "fractions", "functools:reduce")
_TYPES = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and name not in ("type", "super", "memoryview")
) | {"NotImplemented", "Ellipsis"}


def serve_check() -> NoReturn:
    """Run one check, which the first request brings: {"check", "setup", "names"}, code and names.

    Each request is answered by one reply. What is asked of the program leaves as {"call": ...},
    and the next request is what it says. The last reply is {"verdict": ...}: "passed"; "failed",
    an assertion does not hold; "raised", an exception of the program's ended it; "broken", the
    assertions are no Python or ask for what cannot leave the process.
    """
    silence()

    def serve() -> None:
        job = json.loads(wire.read_message(wire.REQUEST))
        verdict = _check(job["check"], job["setup"], job["names"])
        wire.write_message(wire.REPLY, json.dumps({"verdict": verdict}).encode())

    run_and_exit(serve)


class _Test(Peer):
    """The test's side: it hands out functions, iterators and objects of its own, and no more.

    asked_for: names of the classes that the task asks for.
    """

    is_test = True

    def __init__(self, module: types.ModuleType, asked_for: set[str]):
        super().__init__(_read, _write, {})
        self._module = module
        self.asked_for = asked_for

    def refers(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Iterator):
            return {"is": "iterator"}
        if self._is_own_function(value) or type(value).__module__ in ("functools", "operator"):
            name = getattr(value, "__name__", "function")
            return {"is": "function", "type": name, "doc": getattr(value, "__doc__", None)}
        if type(value).__module__ == _NAME:
            return {
                "is": "object",
                "type": type(value).__name__,
                "operations": operations_of(value),
            }
        raise Unsupported()

    def _is_own_function(self, value: Any) -> bool:
        if isinstance(value, type):
            return value.__module__ == _NAME
        function = getattr(value, "__func__", value)
        is_function = isinstance(function, types.FunctionType)
        return is_function and function.__globals__ is vars(self._module)

    def meets(self, number: int, known: dict[str, Any]) -> Any:
        match known["is"]:
            case "iterator":
                return drawn(self, number)
            case "coroutine":
                return coroutine(self, number)
            case "exception":
                return self.exception_class(known["names"])
        name = str(known["type"])
        return stand_in(self, number, name, known["operations"], name in self.asked_for)

    def takes(self, name: str) -> bool:
        """What can do no harm in this process, whatever it is called with."""
        module, _, path = name.partition(":")
        if module == builtins.__name__:
            return path in _TYPES
        return bool(path) and (module in (*_FUNCTIONS, *_CLASSES) or name in _CLASSES)

    def gives(self, name: str) -> bool:
        return True

    def does(self, what: str, value: Any, name: str, args: list[Any], kwargs: Any) -> Any:
        if what == "input":
            return input(*args)
        if what == "read" and name in ("read", "readline"):
            return getattr(sys.stdin, name)()
        if what == "draw":
            return self.drawing(value).draw(*args)
        if what == "call" and callable(value):
            return value(*args, **kwargs)
        if what == "operate" and name in operations_of(value) and name != "__call__":
            return getattr(type(value), name)(value, *args)
        if what == "get" and not name.startswith("_") and type(value).__module__ == _NAME:
            return getattr(value, name)
        raise TypeError(f"a test's value cannot be asked to {what}")


class _Absent:
    """A function that the program does not define: calling it raises what looking for it does."""

    def __init__(self, peer: Peer, name: str):
        self._peer = peer
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("find", None, self._name)


def _read() -> dict[str, Any]:
    """A message of the program's; what it has printed is printed here, where a test may look."""
    said = json.loads(wire.read_message(wire.REQUEST))
    if not isinstance(said, dict):
        raise TypeError("not a message")
    written = said.get("written")
    if isinstance(written, str):
        sys.stdout.write(written)
    return said


def _write(message: dict[str, Any]) -> None:
    wire.write_message(wire.REPLY, json.dumps({"call": message}).encode())


def _check(source: str, setup: str, functions: list[str]) -> str:
    """Run the setup and the check, with the program's functions and what else they take of it."""
    module: types.ModuleType = new_module(_NAME)
    space = vars(module)
    try:
        trees = [ast.parse(code) for code in (setup, source)]
        first, second = (compile(code, f"<{_NAME}>", "exec") for code in (setup, source))
        for name in _modules(trees) - {*functions}:
            space[name] = importlib.import_module(name)
    except Exception:
        return "broken"
    peer = _Test(module, _classes_in(trees[0]) & {*functions})
    try:
        needed = _free(trees[:1]) - space.keys()
        if needed:
            space.update(_borrowed(peer, {*functions}, needed))
        try:
            exec(first, space)
        except Exception:
            if needed:  # of the program
                raise
            return "broken"
        peer.classes.update(_own_classes(space, functions))
        space.update(_borrowed(peer, {*functions}, _free(trees) - space.keys()))
        exec(second, space)
    except Unsupported:
        return "broken"
    except Exception as error:
        return "raised" if any(error is each for each in peer.raised) else "failed"
    return "passed"


def _borrowed(peer: _Test, functions: set[str], others: set[str]) -> dict[str, Any]:
    """The program's functions, and what it has of other names that the test only uses."""
    wanted = [sorted(functions | others), list(peer.classes), sorted(peer.asked_for)]
    found = dict(peer.ask("names", None, "others" if others - functions else "", wanted))
    return {name: _Absent(peer, name) for name in functions} | found


def _own_classes(space: dict[str, Any], functions: list[str]) -> dict[str, type]:
    """The classes that the setup defines and the program has too, and not is asked for."""
    return {
        name: value
        for name, value in space.items()
        if isinstance(value, type) and value.__module__ == _NAME and name not in functions
    }


def _free(trees: list[ast.Module]) -> set[str]:
    """Names that code uses and neither it nor Python binds."""
    used: set[str] = set()
    bound = {*dir(builtins), "__name__"}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            bound.add(node.name)
    return used - bound


def _modules(trees: list[ast.Module]) -> set[str]:
    """Python's own modules that code uses and does not import: a program's import would do."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    owners = {
        node.value.id
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return owners & _free(trees) & sys.stdlib_module_names


def _classes_in(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
