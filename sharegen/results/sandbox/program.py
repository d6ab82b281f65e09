"""The program's side of what a test and a program say to each other (`exchange.py`)."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import json
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import wire
from .exchange import Peer
from .remote import drawn, operations_of, stand_in

_PRINTED = 1 << 16
"""Characters that a test sees of what a program prints between two messages."""


class Program(Peer):
    """The program's side: it answers whatever is asked, and may ask, too.

    find: what of a module has a name, as tests call it.
    """

    is_test = False

    def __init__(self, module: types.ModuleType, find: Callable[[types.ModuleType, str], Any]):
        super().__init__(_read, self._write_all, {})
        self._module = module
        self._find = find
        self._asked_for: set[str] = set()
        self._output = sys.stdout = io.StringIO()
        sys.stdin = _Input(self)  # type: ignore[assignment]
        builtins.input = self._input  # type: ignore[assignment]

    def _input(self, prompt: object = "") -> str:
        return str(self.ask("input", None, args=[str(prompt)]))

    def _write_all(self, message: dict[str, Any]) -> None:
        """Write all, with what was printed since, which a test may look at."""
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
                return self._find(self._module, name)
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

    def _names(
        self, names: list[str], classes: list[str], asked_for: list[str]
    ) -> list[tuple[str, Any]]:
        """Return those of these names that the program defines, with their values.

        classes: names of classes that the test has, too; asked_for: names that the test is about.
        """
        self._asked_for = {*asked_for}
        space = vars(self._module)
        for name in classes:
            if isinstance(space.get(name), type):
                self.classes[name] = space[name]
        found = []
        for name in names:
            with contextlib.suppress(AttributeError):
                found.append((name, self._find(self._module, name)))
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
    return json.loads(wire.read_message(wire.REQUEST))  # type: ignore[no-any-return]


def _write(message: dict[str, Any]) -> None:
    wire.write_message(wire.REPLY, json.dumps(message).encode())
