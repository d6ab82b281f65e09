"""The process that runs a program, once it is confined.

Two ways to run: `run_script` is a script with standard input and output; `serve_calls` runs the
program once and then answers calls of its functions. What the process says about itself by its
exit status only ever counts against it.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import literal, wire
from .program import Program

COMPILE_ERROR = 97
OUT_OF_MEMORY = 98
FAILED = 1


def run_script(source: str, prelude: str) -> NoReturn:
    """Run a program as the script that it is: input and output are descriptors 0 and 1.

    A `return` outside of functions ends it. Some solutions in APPS have one, since its own runner
    makes a function of every program.
    """
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(2, "w")  # type: ignore[misc]
    run_and_exit(lambda: _execute(source, prelude, "__main__", may_return=True), (sys.stdout,))


def serve_calls(source: str, prelude: str) -> NoReturn:
    """Run a program, then answer each request {"name", "args", "kwargs"} with a literal.

    The reply is {"value": ...}, or {"raised": the exception's name}, which is "NotLiteral" for an
    answer that has no literal form. A request of another form is a test's, which has a Python of
    its own to talk to (`exchange.py`).
    """
    silence()

    def serve() -> None:
        module = _execute(source, prelude, "program")
        while True:
            request = json.loads(wire.read_message(wire.REQUEST))
            if "do" in request:
                Program(module, _find).serve(request)
            wire.write_message(wire.REPLY, _answer(module, request))

    run_and_exit(serve)


def new_module(name: str) -> types.ModuleType:
    """An empty module in which code finds itself: dataclasses and pickle look it up."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def silence() -> None:
    """Give the process no input, and discard its output."""
    nowhere = open(os.devnull, "r+", encoding="utf-8", errors="replace")  # noqa: SIM115
    sys.stdin = sys.stdout = sys.stderr = nowhere
    sys.__stdin__ = sys.__stdout__ = sys.__stderr__ = nowhere  # type: ignore[misc]


def run_and_exit(run: Callable[[], object], streams: Sequence[Any] = ()) -> NoReturn:
    """Run and end as the interpreter would (threads, atexit, flush); the status says how."""
    finish = (threading._shutdown, atexit._run_exitfuncs)  # type: ignore[attr-defined]
    leave, standard = os._exit, sys
    status = FAILED
    try:
        try:
            run()
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else FAILED * bool(error.code)
        for step in finish:
            step()
        for stream in (*streams, standard.stdout):
            stream.flush()
    except MemoryError:
        status = OUT_OF_MEMORY
    except BaseException:
        status = FAILED
    finally:
        leave(status & 0xFF)


def _stream(descriptor: int, mode: str) -> Any:
    return open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)


class _EndAtReturn(ast.NodeTransformer):
    """Replaces each `return` outside of functions by the end of the program."""

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        kept: list[ast.stmt] = [] if node.value is None else [ast.Expr(node.value)]
        return [*kept, ast.Raise(ast.Name("SystemExit", ast.Load()))]


def _compiled(source: str, may_return: bool) -> types.CodeType:
    try:
        return compile(source, "<program>", "exec")
    except SyntaxError as error:
        if not may_return or error.msg != "'return' outside function":
            raise
    tree = _EndAtReturn().visit(ast.parse(source))
    return compile(ast.fix_missing_locations(tree), "<program>", "exec")


def _execute(source: str, prelude: str, name: str, *, may_return: bool = False) -> types.ModuleType:
    try:
        code = _compiled(source, may_return)
    except (SyntaxError, ValueError, RecursionError, OverflowError, MemoryError):
        os._exit(COMPILE_ERROR)  # MemoryError: how the parser refuses what is nested too deeply
    module = new_module(name)
    exec(prelude, module.__dict__)
    exec(code, module.__dict__)
    return module


def _answer(module: types.ModuleType, call: dict[str, Any]) -> bytes:
    try:
        function = _find(module, call["name"])
        value = function(*literal.decode(call["args"]), **literal.decode(call["kwargs"]))
        reply = {"value": literal.encode(value)}
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception as error:
        reply = {"raised": type(error).__name__}
    return json.dumps(reply).encode()


def _find(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """The method of a fresh `Solution`, else what has that name: a prelude's function may, too."""
    solution = getattr(module, "Solution", None)
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    return getattr(module, name)
