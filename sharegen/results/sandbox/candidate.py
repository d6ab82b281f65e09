"""The process that runs a program, once it is confined.

Two ways to run: `run_script` is a script with standard input and output; `serve_calls` runs the
program once and then answers calls of its functions. What the process says about itself by its
exit status only ever counts against it.
"""

from __future__ import annotations

import ast
import asyncio
import atexit
import builtins
import contextlib
import io
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from . import literal, wire
from .exchange import Peer
from .remote import drawn, operations_of, stand_in

COMPILE_ERROR = 97
OUT_OF_MEMORY = 98
FAILED = 1

_PRINTED = 1 << 16
"""Characters that a test sees of what a program prints between two messages."""

REQUEST, REPLY = 3, 4
"""Descriptors on which a session's messages arrive and leave."""


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
            request = json.loads(wire.read_message(REQUEST))
            if "do" in request:
                _Program(module).serve(request)
            wire.write_message(REPLY, _answer(module, request))

    run_and_exit(serve)


def new_module(name: str) -> types.ModuleType:
    """An empty module in which code finds itself: dataclasses and pickle look it up."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module


def silence() -> None:
    """No input, and output that goes nowhere."""
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


class _Program(Peer):
    """The program's side of a conversation with a test."""

    is_test = False

    def __init__(self, module: types.ModuleType):
        super().__init__(_read, self._write_all, {})
        self._module = module
        self._asked_for: set[str] = set()
        self._output = sys.stdout = io.StringIO()
        sys.stdin = _Input(self)  # type: ignore[assignment]
        builtins.input = self._input  # type: ignore[assignment]

    def _input(self, prompt: object = "") -> str:
        return str(self.ask("input", None, args=[str(prompt)]))

    def _write_all(self, message: dict[str, Any]) -> None:
        """With what was printed since, which a test may look at."""
        written = self._output.getvalue()[:_PRINTED]
        self._output.seek(0)
        self._output.truncate()
        _write(message | {"written": written} if written else message)

    def refers(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Iterator) and type(value).__module__ != self._module.__name__:
            return {"is": "iterator"}
        if isinstance(value, types.CoroutineType):
            return {"is": "coroutine"}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"is": "exception", "names": [each.__name__ for each in value.__mro__]}
        named = value if isinstance(value, type | types.FunctionType) else type(value)
        known = {"is": "object", "type": named.__name__, "operations": operations_of(value)}
        return known

    def meets(self, number: int, known: dict[str, Any]) -> Any:
        if known["is"] == "iterator":
            return drawn(self, number)
        if known["is"] == "function":
            return _function(self, number, known["type"], known.get("doc"))
        return stand_in(self, number, known["type"], known["operations"], True)

    def takes(self, name: str) -> bool:
        return True

    def gives(self, name: str) -> bool:
        return ":" in name

    def keeps(self, value: Any) -> bool:
        return type(value).__name__ in self._asked_for

    def does(self, what: str, value: Any, name: str, args: list[Any], kwargs: Any) -> Any:
        match what:
            case "names":
                return self._names(*args)
            case "find":
                return _find(self._module, name)
            case "call":
                return value(*args, **kwargs)
            case "get":
                return getattr(value, name)
            case "set":
                return setattr(value, name, *args)
            case "delete":
                return delattr(value, name)
            case "draw":
                return self.drawing(value).draw(*args)
            case "run":
                return asyncio.run(value)
        if name == "__instancecheck__":
            return isinstance(args[0], value)
        return getattr(type(value), name)(value, *args)

    def _names(self, names: list[str], classes: list[str]) -> list[tuple[str, Any]]:
        """Of these names what the program has; classes: names of those that the test has, too."""
        space = vars(self._module)
        for name in classes:
            if isinstance(space.get(name), type):
                self.classes[name] = space[name]
        found = []
        for name in names:
            with contextlib.suppress(AttributeError):
                found.append((name, _find(self._module, name)))
        return found


class _Input(io.TextIOBase):
    """Standard input, which is the test's."""

    def __init__(self, peer: Peer):
        self._peer = peer

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        return str(self._peer.ask("read", None, "readline"))

    def read(self, size: int | None = -1, /) -> str:
        return str(self._peer.ask("read", None, "read"))


def _function(peer: Peer, number: int, name: str, doc: str | None) -> Callable[..., Any]:
    """A function that calls one of the test's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return peer.ask("call", number, args=args, kwargs=kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    return call


def _read() -> dict[str, Any]:
    return json.loads(wire.read_message(REQUEST))  # type: ignore[no-any-return]


def _write(message: dict[str, Any]) -> None:
    wire.write_message(REPLY, json.dumps(message).encode())
