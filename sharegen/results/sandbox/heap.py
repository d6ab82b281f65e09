"""Lists, dicts and other changeable values that a test and a program both hold, kept alike.

A program may change an argument in place, keep it, or give back what it was given. So values that
can change travel once, under a number, and whatever changed of them goes along with every message:
each side has the same objects, in the same places, with the same content.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LISTS: dict[str, type] = {"list": list, "deque": deque, "set": set, "bytearray": bytearray}
_DICTS: dict[str, type] = {
    "dict": dict,
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
}
_ARRAY = "ndarray"
_KINDS = {kind: name for name, kind in (_LISTS | _DICTS).items()}
_UNHELD = 2
"""References to an object that only the heap holds, one of them to ask for their number."""

State = list[Any]
"""What travels of an object: its kind, its items, and what else there is to it."""


class Heap:
    """The objects by number.

    encode, decode: of the values within. class_named: the class of a name that both sides have,
        whose objects travel with their attributes; None where there is none.
    first: the first number that this side gives, 0 or 1; it gives every second.
    """

    def __init__(
        self,
        first: int,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        class_named: Callable[[str], type | None],
    ):
        self._next = first
        self._encode = encode
        self._decode = decode
        self._class_named = class_named
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._states: dict[int, State] = {}

    def number(self, value: Any) -> int | None:
        """The number of an object that can be kept alike; None for any other."""
        known = self._numbers.get(id(value))
        if known is None and self._kind(value) is not None:
            known = self._next
            self._next += 2
            self._hold(known, value)
        return known

    def __getitem__(self, number: int) -> Any:
        return self._objects[number]

    def changes(self) -> list[tuple[int, State]]:
        """What differs from what the other side has, new objects included."""
        changed: dict[int, State] = {}
        looked_at = 0
        while looked_at < len(self._objects):  # looking at one may bring others
            for number in list(self._objects)[looked_at:]:
                looked_at += 1
                state = self._state(self._objects[number])
                if self._states.get(number) != state:
                    self._states[number] = changed[number] = state
        return list(changed.items())

    def learn(self, changes: Iterable[tuple[int, State]]) -> None:
        """Take over what the other side says. Raises ValueError, TypeError or KeyError for junk."""
        states = {number: state for number, state in changes if type(number) is int}
        for number, state in states.items():
            if number not in self._objects:
                self._hold(number, self._empty(state))
            elif self._kind(self._objects[number]) != state[0]:
                raise ValueError("an object changed its kind")
        for number in sorted(states, key=lambda each: states[each][0] in (*_LISTS, *_DICTS)):
            self._fill(self._objects[number], *states[number])  # records first: sets hash them
            self._states[number] = states[number]

    def release(self) -> list[int]:
        """Forget the objects that nobody on this side holds; return their numbers, for the other
        side.
        """
        released: list[int] = []
        while True:
            objects = self._objects
            unheld = [each for each in objects if sys.getrefcount(objects[each]) <= _UNHELD]
            if not unheld:
                return released
            self.forget(unheld)
            released += unheld

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._objects:
                del self._numbers[id(self._objects[number])]
                del self._objects[number]
                self._states.pop(number, None)

    def _hold(self, number: int, value: Any) -> None:
        self._objects[number] = value
        self._numbers[id(value)] = number

    def _kind(self, value: Any) -> str | None:
        kind = _KINDS.get(type(value))
        if kind is None and _is_array(value):
            return _ARRAY
        if kind is None and self._class_named(type(value).__name__) is type(value):
            return f".{type(value).__name__}"
        return kind

    def _empty(self, state: State) -> Any:
        kind = state[0]
        if kind == "deque":
            return deque(maxlen=state[2])
        if kind == _ARRAY:
            dtype, shape = state[2]
            return importlib.import_module("numpy").empty(shape, dtype)
        if kind.startswith("."):
            cls = self._class_named(kind[1:])
            if cls is None:
                raise NameError(f"name {kind[1:]!r} is not defined")
            return object.__new__(cls)
        return (_LISTS | _DICTS)[kind]()

    def _state(self, value: Any) -> State:
        kind = self._kind(value)
        assert kind is not None
        if kind == "bytearray":
            return [kind, value.hex()]
        if kind == _ARRAY:
            return [kind, value.tobytes().hex(), [value.dtype.str, list(value.shape)]]
        if kind in _LISTS:
            rest = value.maxlen if kind == "deque" else None
            return [kind, [self._encode(item) for item in value], rest]
        if kind in _DICTS:
            factory = value.default_factory if kind == "defaultdict" else None
            items = [[self._encode(key), self._encode(item)] for key, item in value.items()]
            return [kind, items, self._encode(factory)]
        return [kind, [[name, self._encode(item)] for name, item in _attributes(value)], None]

    def _fill(self, value: Any, kind: str, items: Any, rest: Any = None) -> None:
        if kind == "bytearray":
            value[:] = bytes.fromhex(items)
        elif kind == _ARRAY:
            numbers = importlib.import_module("numpy").frombuffer(bytes.fromhex(items), rest[0])
            value[...] = numbers.reshape(rest[1])
        elif kind in _LISTS:
            decoded = [self._decode(item) for item in items]
            value.clear()
            (value.update if kind == "set" else value.extend)(decoded)
        elif kind in _DICTS:
            pairs = [(self._decode(key), self._decode(item)) for key, item in items]
            value.clear()
            for key, item in pairs:
                value[key] = item
            if kind == "defaultdict":
                value.default_factory = self._decode(rest)
        else:
            decoded = [(name, self._decode(item)) for name, item in items]
            for name in [name for name, _ in _attributes(value)]:
                object.__delattr__(value, name)
            for name, item in decoded:
                if not callable(getattr(type(value), name, None)):  # its methods are its own
                    object.__setattr__(value, name, item)


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy's, of numbers."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in "biufc"


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Names and values that an object has of its own, in its dict or in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
