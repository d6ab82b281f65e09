"""What a dataset's test and a program say to each other, each from a process of its own.

A test calls the program's functions, goes on with what they give back (functions, generators,
objects), hands over values that the program changes in place, functions that it calls, and looks
at exceptions. Plain values travel as data (`literal.py`), changeable ones are kept alike on both
sides (`heap.py`), and for everything else the other side gets a reference (`remote.py`): asking it
something is a message there and one back, in the midst of which the other side may ask, too.

The program may say whatever it likes. What the test gets is built here: values of builtin types,
of the test's own classes, and references. None of them runs code of the program in this process.
"""

from __future__ import annotations

import builtins
import collections
import enum
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from . import literal
from .heap import Heap
from .named import named, public_name
from .plain_values import AS_TEXT, fields_of, from_fields, is_exception, made_of, said_by
from .remote import SharedIterator

_BUILTINS = (bool, int, str, float, complex, bytes, list, dict, set, frozenset, tuple)
_NO_RECORDS = (*(kind for kind in _BUILTINS if kind is not bool), BaseException, enum.Enum, type)
"""What travels otherwise than as an object with its attributes."""


_new_named_tuple: Callable[[str, list[str]], Any] = collections.namedtuple


class Unsupported(BaseException):
    """A test hands over what cannot leave its process; no assertion may catch that."""


class Peer:
    """One side of the exchange, which is this process.

    read, write: of one message, a JSON object.
    classes: by name those that both sides have.

    own: what the other side has references to, by number; raised: exceptions that it described.
    """

    is_test: bool

    def __init__(
        self,
        read: Callable[[], dict[str, Any]],
        write: Callable[[dict[str, Any]], None],
        classes: dict[str, type],
    ):
        self._read = read
        self._write = write
        self.classes = classes
        self.heap = Heap(int(self.is_test), self.encode, self.decode, self._record_class)
        self.own: dict[int, Any] = {}
        self.raised: list[Exception] = []
        self._own_numbers: dict[int, int] = {}
        self._theirs: dict[int, Any] = {}
        self._their_numbers: dict[int, int] = {}
        self._released: Iterable[int] = ()
        self._drawings: dict[int, SharedIterator] = {}
        self._exceptions: dict[str, type[Exception]] = {}

    # what a subclass decides

    def refers(self, value: Any) -> dict[str, Any]:
        """What the other side needs to know of a value that it gets a reference to.

        Raises Unsupported for a value that may not be referred to.
        """
        raise NotImplementedError

    def meets(self, number: int, known: dict[str, Any]) -> Any:
        """Something that stands for the other side's object of that number."""
        raise NotImplementedError

    def takes(self, name: str) -> bool:
        """Whether the other side may hand over what has this name in Python's own modules."""
        raise NotImplementedError

    def gives(self, name: str) -> bool:
        """Whether this side hands it over under that name."""
        raise NotImplementedError

    def does(self, what: str, value: Any, name: str, args: list[Any], kwargs: Any) -> Any:
        """What the other side asks of a value."""
        raise NotImplementedError

    def drawing(self, iterator: Any) -> SharedIterator:
        """How far the other side is with one of our iterators."""
        return self._drawings.setdefault(id(iterator), SharedIterator(iterator))

    # messages

    def ask(
        self, what: str, number: int | None, name: str = "", args: Any = (), kwargs: Any = None
    ) -> Any:
        """Ask the other side for something of its object of that number, or of itself.

        It may ask this side before it replies. Raises what that raises there.
        """
        self._send(
            {
                "do": what,
                "on": number,
                "name": name,
                "args": [self.encode(value) for value in args],
                "kwargs": {key: self.encode(value) for key, value in (kwargs or {}).items()},
            }
        )
        while True:
            said = self._receive()
            if "do" in said:
                self._send(self.reply(said))
            elif "raised" in said:
                error = self.exception(said["raised"])
                self._let_go()
                self.raised.append(error)
                raise error
            else:
                value = self.decode(said["value"])
                self._let_go()
                return value

    def serve(self, first: dict[str, Any]) -> NoReturn:
        """Answer requests, the first of which is here, for ever."""
        self._take_over(first)
        said = first
        while True:
            self._send(self.reply(said))
            said = self._receive()

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            args = [self.decode(each) for each in request["args"]]
            kwargs = {key: self.decode(each) for key, each in request["kwargs"].items()}
            self._let_go()
            on = None if request["on"] is None else self.own[request["on"]]
            value = self.does(request["do"], on, request["name"], args, kwargs)
            return {"value": self.encode(value)}
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            return {"raised": self._described(error)}

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message with what has changed, and with what this side no longer holds."""
        about = {"heap": self.heap.changes(), "released": self.heap.release()}
        self._write(message | {name: what for name, what in about.items() if what})

    def _receive(self) -> dict[str, Any]:
        message = self._read()
        self._take_over(message)
        return message

    def _take_over(self, message: dict[str, Any]) -> None:
        self.heap.learn(message.get("heap", ()))
        self._released = message.get("released", ())

    def _let_go(self) -> None:
        """Forget what the other side does, now that its message has been decoded."""
        self.heap.forget(self._released)
        self._released = ()

    # values

    def encode(self, value: Any, depth: int = 0) -> Any:
        """A value as JSON-able data. Raises NotLiteral for one that is nested without end."""
        if depth > literal.MAX_DEPTH:
            raise literal.NotLiteral("nested too deeply")
        kind = type(value)
        if kind in (int, str, float, bool, complex, bytes, range, type(None)):
            return literal.encode(value)
        number = self._their_numbers.get(id(value))
        if number is not None:
            return {"yours": number}
        number = self.heap.number(value)
        if number is not None:
            return {"both": number}
        return self._encode_rest(value, depth)

    def _encode_rest(self, value: Any, depth: int) -> Any:
        kind = type(value)

        def items(of: Any) -> list[Any]:
            return [self.encode(item, depth + 1) for item in of]

        if isinstance(value, enum.Enum) and self._is_known(kind):
            return {"member": [kind.__name__, value.name]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"named": [kind.__name__, list(value._fields), items(value)]}
        if kind is slice:
            return {"slice": items((value.start, value.stop, value.step))}
        if kind is frozenset or kind is tuple:
            return {"t" if kind is tuple else "f": items(value)}
        if kind.__name__ in AS_TEXT and isinstance(value, AS_TEXT[kind.__name__]):
            return {"text": [kind.__name__, str(value)]}
        if (fields := fields_of(value)) is not None:
            return {"fields": fields}
        if isinstance(value, BaseException):
            return {"raised": self._described(value)}
        if isinstance(value, type) and self._is_known(value):
            return {"class": value.__name__}
        name = public_name(value)
        if name is not None and self.gives(name):
            return {"name": name}
        return self._encode_object(value, depth)

    def _encode_object(self, value: Any, depth: int) -> Any:
        """An object: as the builtin that its class extends, else as a reference."""
        if not isinstance(value, type):
            base = next((each for each in _BUILTINS if issubclass(type(value), each)), None)
            is_scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0
            if is_scalar or (base is not None and not self.keeps(value)):
                plain = literal.encode(value, depth)
                changeable = base in (list, dict, set)
                return self.encode(literal.decode(plain)) if changeable else plain
        known = self.refers(value)
        number = self._own_numbers.setdefault(id(value), len(self.own))
        self.own[number] = value
        return {"mine": number} | known

    def keeps(self, value: Any) -> bool:
        """Whether an object that extends a builtin type stays where it is for its methods."""
        return False

    def _record_class(self, name: str) -> type | None:
        """The class of that name whose objects travel with their attributes, if one is."""
        kind = self.classes.get(name)
        return None if kind is None or issubclass(kind, _NO_RECORDS) else kind

    def _is_known(self, kind: type) -> bool:
        return self.classes.get(kind.__name__) is kind

    def decode(self, data: Any) -> Any:
        """The value back. Raises ValueError, TypeError or the like for junk."""
        if isinstance(data, list):
            raise ValueError("a list travels under a number")
        if not isinstance(data, dict):
            return data
        tag = next(iter(data))
        inner = data[tag]
        match tag:
            case "both":
                return self.heap[inner]
            case "yours":
                return self.own[inner]
            case "mine":
                if inner not in self._theirs:
                    self._theirs[inner] = stands_for = self.meets(inner, data)
                    self._their_numbers[id(stands_for)] = inner
                return self._theirs[inner]
            case "t":
                return tuple(self.decode(item) for item in inner)
            case "f":
                return frozenset(self.decode(item) for item in inner)
            case "slice":
                return slice(*(self.decode(item) for item in inner))
            case "named":
                return self._decode_named(*inner)
            case "member":
                return self.classes[inner[0]][inner[1]]  # type: ignore[index]
            case "class":
                return self.classes[inner]
            case "text":
                return AS_TEXT[inner[0]](inner[1])
            case "fields":
                return from_fields(*inner)
            case "raised":
                return self.exception(inner)
            case "name":
                if not self.takes(inner):
                    raise ValueError("not a name to take")
                return named(inner)
        return literal.decode(data)

    def _decode_named(self, name: str, fields: list[str], items: list[Any]) -> Any:
        """A named tuple, of this side's class where it has one of that name and fields."""
        known: Any = self.classes.get(name)
        if getattr(known, "_fields", None) != tuple(fields):
            known = _new_named_tuple(name, fields)
        return known(*(self.decode(item) for item in items))

    # exceptions

    def _described(self, error: BaseException) -> dict[str, Any]:
        """An exception as data: its class and what that extends, what it holds and says."""
        kind = type(error)
        names = [each.__name__ for each in kind.__mro__ if isinstance(each.__name__, str)]
        try:
            args = [self.encode(value) for value in error.args]
            rest = {
                key: self.encode(value)
                for key, value in vars(error).items()
                if not key.startswith("_")
            }
            said = str(error)
        except Exception:
            args, rest, said = [], {}, ""
        return {"kind": names, "args": args, "rest": rest, "said": str.__str__(said)}

    def exception(self, described: Any) -> Exception:
        """The exception that the other side described, as one of a class of this side."""
        kind = self.exception_class(described["kind"])
        args = [self.decode(value) for value in described["args"]]
        error = made_of(kind, args)
        for key, value in described["rest"].items():
            if not callable(getattr(kind, key, None)):
                error.__dict__[key] = self.decode(value)
        said = described["said"]
        if isinstance(said, str) and said_by(error) != said:
            rest = error.__dict__
            error = made_of(type(kind.__name__, (kind,), {"__str__": lambda _: said}), args)
            error.__dict__.update(rest)
        return error

    def exception_class(self, names: list[Any]) -> type[Exception]:
        """The class of that name, or one of its name that extends what it extends there."""
        names = [name for name in names if isinstance(name, str)] or [Exception.__name__]
        known = self.classes.get(names[0]) or self._exceptions.get(names[0])
        if known is not None and issubclass(known, Exception):
            return known
        kinds: list[Any] = [getattr(builtins, name, None) for name in names]
        base: type[Exception] = next(filter(is_exception, kinds), Exception)
        if base.__name__ == names[0]:
            return base
        made = self._exceptions[names[0]] = type(names[0], (base,), {})
        return made
