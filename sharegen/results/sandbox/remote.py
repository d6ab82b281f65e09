"""What stands for an object of the other side: asking it something asks there.

What a program's function gives back decides no test by itself. Where an operation would hand it the
value that a test expects (`==`, `<`, `+`, `in`, `startswith`, ...) it is not asked: it equals
nothing and has no such operation, unless both operands are the program's. Objects of a class that
the task itself asks for are what the test is about, and are asked everything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol


class Asker(Protocol):
    """What asks the other side (`exchange.py`)."""

    def ask(
        self, what: str, number: int | None, name: str = "", args: Any = (), kwargs: Any = None
    ) -> Any: ...


_ASKED = (
    *("__len__", "__getitem__", "__setitem__", "__delitem__", "__str__", "__repr__", "__format__"),
    *("__bool__", "__int__", "__float__", "__abs__", "__neg__", "__pos__", "__invert__"),
    *("__round__", "__reversed__", "__enter__", "__exit__", "__iter__", "__next__"),
)
_AMONG_ITS_OWN = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__"),
    *("__matmul__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__divmod__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"),
    *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__rand__", "__ror__", "__rxor__"),
)
OPERATIONS = frozenset((*_ASKED, *_AMONG_ITS_OWN, "__call__", "__instancecheck__"))
"""What a class may have that its stand-in has, too."""

_TOLD = ("__name__", "__qualname__", "__doc__", "__dict__")
_PREDICATES = ("startswith", "endswith", "issubset", "issuperset", "isdisjoint")


def operations_of(value: Any) -> list[str]:
    """Return those of `OPERATIONS` that a value has."""
    has = {name for name in OPERATIONS if hasattr(type(value), name)}
    return sorted(has if isinstance(value, type) else has - {"__instancecheck__"})


class Remote:
    """An object of the other side, by its number.

    is_asked_for: whether the task asks for objects of its class.
    """

    __slots__ = ("_is_asked_for", "_number", "_peer")

    def __init__(self, peer: Asker, number: int, is_asked_for: bool):
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_is_asked_for", is_asked_for)

    def __getattr__(self, name: str) -> Any:
        is_hidden = name.startswith("__") and name not in _TOLD
        if is_hidden or (name in _PREDICATES and not self._is_asked_for):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._peer.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self._number, name, [value])

    def __delattr__(self, name: str) -> None:
        self._peer.ask("delete", self._number, name)

    def __hash__(self) -> int:
        return id(self)


def stand_in(
    peer: Asker, number: int, name: str, operations: list[str], is_asked_for: bool
) -> Remote:
    """A stand-in whose class has that name and these of `OPERATIONS`."""
    methods: dict[str, Any] = {each: _operation(each) for each in operations if each in OPERATIONS}
    methods |= {"__doc__": _DOC, "__hash__": Remote.__hash__}
    kind = type(name, (Remote,), {"__slots__": (), **methods})
    return kind(peer, number, is_asked_for)  # type: ignore[no-any-return]


_DOC = property(lambda self: self._peer.ask("get", self._number, "__doc__"))


def _operation(name: str) -> Callable[..., Any]:
    if name == "__call__":
        return lambda self, *args, **kwargs: self._peer.ask(
            "call", self._number, args=args, kwargs=kwargs
        )
    if name == "__contains__":
        return _contains
    if name == "__next__":
        return _next
    if name == "__instancecheck__":
        return lambda self, value: isinstance(value, Remote) and bool(_operate(self, name, value))
    if name == "__exit__":
        return lambda self, kind, error, _: _operate(self, name, kind, error, None)

    def operate(self: Remote, *args: Any) -> Any:
        is_own = name in _ASKED or self._is_asked_for or isinstance(args[0], Remote)
        return _operate(self, name, *args) if is_own else NotImplemented

    return operate


def _operate(self: Remote, name: str, *args: Any) -> Any:
    return self._peer.ask("operate", self._number, name, args)


def _next(self: Remote) -> Any:
    items, _ = self._peer.ask("draw", self._number, args=[1, None])
    if not items:
        raise StopIteration
    return items[0]


def _contains(self: Remote, value: Any) -> bool:
    if self._is_asked_for or isinstance(value, Remote):
        return bool(_operate(self, "__contains__", value))
    return any(item is value or item == value for item in self)  # type: ignore[attr-defined]


_SINGLE = 16
"""Items of an iterator that are drawn one by one, before several travel at a time."""
_MOST = 1024


def drawn(peer: Asker, number: int) -> Iterator[Any]:
    """A generator over the items of an iterator of the other side, which ends when that does."""
    count = 0
    sent = None
    while True:
        several = 1 if count < _SINGLE or sent is not None else min(count, _MOST)
        items, is_over = peer.ask("draw", number, args=[several, sent])
        sent = None
        for item in items:
            sent = yield item
        count += len(items)
        if is_over:
            return


def coroutine(peer: Asker, number: int) -> Coroutine[Any, Any, Any]:
    """A coroutine whose result is that of the other side's, which runs there."""

    async def run() -> Any:
        return peer.ask("run", number)

    return run()


class SharedIterator:
    """What of this side the other side draws from; an exception waits for its turn."""

    def __init__(self, iterator: Iterator[Any]):
        self.iterator = iterator
        self._raised: BaseException | None = None

    def draw(self, several: int, sent: Any) -> tuple[tuple[Any, ...], bool]:
        """The next items, and whether it is over."""
        if self._raised is not None:
            raise self._raised
        items: list[Any] = []
        try:
            if sent is not None:
                items.append(self.iterator.send(sent))  # type: ignore[attr-defined]
            while len(items) < several:
                items.append(next(self.iterator))
        except StopIteration:
            return tuple(items), True
        except Exception as error:
            if not items:
                raise
            self._raised = error
        return tuple(items), False
