"""Modules that torch imports to ask them one thing, and what stands in for them until it is more.

With each operation on its meta device torch imports its compiler, to mark what that must not trace,
and SymPy, to see that a number is no expression. Together they take longer than building a model.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_INDEXING = "torch._dynamo._trace_wrapped_higher_order_op"
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_SYMPY = "sympy"
_META = ("torch", "torch._prims", "torch._prims_common", "torch._prims_common.wrappers",
         "torch._refs", "torch._meta_registrations")  # fmt: skip
"""Where torch computes on its meta device: they import within functions, with every call."""


def for_compiler() -> list[StandIn]:
    """For the compiler, where torch is imported and nobody has it already."""
    return [] if _COMPILER in sys.modules else [_Compiler()]


def for_symbols() -> list[StandIn]:
    """For SymPy and what imports it, where nobody has them already."""
    if _SYMPY in sys.modules or _SHAPES in sys.modules or find_spec(_SYMPY) is None:
        return []
    importlib.import_module(_SHAPES.rpartition(".")[0])
    return [_Shapes(), _Symbols()]


class StandIn(ModuleType):
    """A module until something is asked of it that the stand-in does not have: then the module
    itself is imported in its place.
    """

    def __init__(
        self, name: str, known: Mapping[str, Any], askers: Sequence[str] | None = None
    ) -> None:
        """known: what the stand-in has, for the modules `askers`, or for all."""
        super().__init__(name)
        self._known = known
        self._askers = askers
        package, _, self._own_name = name.rpartition(".")
        self._package = sys.modules.get(package)
        if self._package is not None or not package:  # who looks whether it is there finds it
            self.__spec__ = find_spec(name)
            if self.__spec__ is not None and self.__spec__.submodule_search_locations:
                self.__path__ = list(self.__spec__.submodule_search_locations)
        sys.modules[name] = self
        if self._package is not None:
            setattr(self._package, self._own_name, self)
        self._finder = _Submodules(self)
        sys.meta_path.insert(0, self._finder)

    def leave(self) -> None:
        """Let the module itself be imported when it is next asked for."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
            if self._package is not None:
                delattr(self._package, self._own_name)
            sys.meta_path.remove(self._finder)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # by Python's own machinery, of any
            raise AttributeError(name)
        if name in self._known and sys.modules.get(self.__name__) is self:
            asks = sys._getframe(1).f_globals.get("__name__")
            if self._askers is None or asks in self._askers:
                return self._known[name]
        return getattr(self.itself(), name)

    def itself(self) -> ModuleType:
        """The module, which takes the stand-in's place."""
        self.leave()
        return importlib.import_module(self.__name__)


class _Compiler(StandIn):
    """`torch._dynamo` while only marks are asked of it, of what it must not trace.

    torch asks for marks with the first operation on its meta device, transformers with its imports.
    Functions are marked when the compiler comes.
    """

    def __init__(self) -> None:
        marks = {
            "allow_in_graph": self._allow_in_graph,
            "assume_constant_result": _assume_constant_result,
            "disable": self._disable,
        }
        super().__init__(_COMPILER, marks)
        self._waiting: list[Callable[[Any], object]] = []
        indexing: Any = ModuleType(_INDEXING)
        indexing.TransformGetItemToIndex = _TransformGetItemToIndex
        sys.modules[_INDEXING] = indexing

    def leave(self) -> None:
        sys.modules.pop(_INDEXING, None)
        super().leave()

    def itself(self) -> ModuleType:
        compiler = super().itself()
        while self._waiting:
            self._waiting.pop()(compiler)
        return compiler

    def _allow_in_graph(self, function: Any) -> Any:
        self._waiting.append(lambda compiler: compiler.allow_in_graph(function))
        return function

    def _disable(self, function: Any = None, recursive: bool = True, **said: Any) -> Any:
        if function is None:
            return partial(self._disable, recursive=recursive, **said)
        if not isinstance(function, FunctionType):
            return self.itself().disable(function, recursive, **said)
        marked = function

        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            return marked(*values, **named)

        def mark(compiler: Any) -> None:
            nonlocal marked
            marked = compiler.disable(function, recursive, **said)

        self._waiting.append(mark)
        return call


def _assume_constant_result(function: Any) -> Any:
    """What the compiler's own does."""
    function._dynamo_marked_constant = True
    return function


class _TransformGetItemToIndex:
    """The compiler's own class of that name, looked up when it is first used: in masks of SDPA."""

    def __new__(cls) -> Any:
        sys.modules.pop(_INDEXING, None)
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        return TransformGetItemToIndex()


def _the_same(value: Any) -> Any:
    return value


_ANSWERS: dict[str, Callable[..., Any]] = {
    "expect_true": _the_same,
    "guard_or_false": _the_same,
    "guard_or_true": _the_same,
    "guard_size_oblivious": _the_same,
    "guarding_hint_or_throw": _the_same,
    "statically_known_true": _the_same,
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "sym_eq": operator.eq,
}
"""What torch asks of symbolic shapes on its meta device, and what they answer for plain numbers."""


class _Shapes(StandIn):
    """torch's symbolic shapes while it asks them about plain numbers alone."""

    def __init__(self) -> None:
        super().__init__(_SHAPES, {name: self._ask(name) for name in _ANSWERS}, _META)

    def _ask(self, name: str) -> Callable[..., Any]:
        """torch's function of that name, which answers by itself where all is plain."""

        def ask(*values: Any, **named: Any) -> Any:
            if not named and all(map(_is_plain, values)):
                return _ANSWERS[name](*values)
            return getattr(self.itself(), name)(*values, **named)

        return ask


def _is_plain(value: Any) -> bool:
    """Whether it is a number, or a shape of numbers, and nothing symbolic."""
    if isinstance(value, tuple):
        return all(isinstance(each, int) for each in value)
    return isinstance(value, int)


class _Symbols(StandIn):
    """SymPy while torch only asks which numbers are its expressions: none, before it is there."""

    def __init__(self) -> None:
        super().__init__(_SYMPY, {"Basic": _NoExpression}, _META)


class _NoExpression:
    """A class that nothing is of."""


@contextmanager
def called_later(modules: Iterable[str], askers: Sequence[str]) -> Iterator[None]:
    """Inside, functions that `askers` import from these modules are imported when they are called.

    Whoever else asks gets the modules themselves, and so does everybody afterwards.
    """
    standing = [
        StandIn(name, _Functions(name), askers) for name in modules if name not in sys.modules
    ]
    try:
        yield
    finally:
        for each in standing:
            each.leave()


class _Functions(dict[str, Any]):
    """A module's functions by name, whatever these are."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Callable[..., Any]:
        module = self._module

        def call(*values: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*values, **named)

        call.__module__, call.__name__, call.__qualname__ = module, name, name
        return call


class _Submodules(MetaPathFinder, Loader):
    """Finds the modules of a package, which comes whole in place of its stand-in."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        package = self._stand_in.__name__
        if not name.startswith(f"{package}."):
            return None
        self._stand_in.itself()
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = sys.modules[spec.name]  # which came with the package
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own
