"""One piece of Python among several in an answer: what it defines, needs, reads and writes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from sharegen.common.python_source import parsed

_READERS = {"input", "raw_input", "stdin", "fileinput"}
_WRITERS = {"print", "stdout"}
_BINDING = (
    *(ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
)


@dataclass(frozen=True)
class Snippet:
    """A piece of Python, whole or not."""

    text: str

    @cached_property
    def tree(self) -> ast.Module | None:
        """The parsed code; None if it is not Python."""
        return parsed(self.text)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        return [] if self.tree is None else self.tree.body

    @cached_property
    def defines(self) -> set[str]:
        """Names that it binds at its outermost level, and the methods of a class `Solution`."""
        names: set[str] = set()
        for statement in self.statements:
            names |= _bound(statement)
            if isinstance(statement, ast.ClassDef) and statement.name == "Solution":
                names |= {part.name for part in statement.body if isinstance(part, ast.FunctionDef)}
        return names

    @cached_property
    def writes_out(self) -> set[str]:
        """The names that are defined here, not imported."""
        imports = [
            each for each in self.statements if isinstance(each, ast.Import | ast.ImportFrom)
        ]
        return self.defines - set().union(*map(_bound, imports))

    @cached_property
    def missing(self) -> set[str]:
        """Names that it uses and nothing in it, nor Python, binds."""
        return set() if self.tree is None else _used(self.tree) - _bound(self.tree, deep=True)

    @cached_property
    def reads(self) -> bool:
        """Whether it takes input."""
        return any(map(_reads, ast.walk(self.tree or ast.Module([], []))))

    @cached_property
    def writes(self) -> bool:
        names = map(_name, ast.walk(self.tree or ast.Module([], [])))
        return any(name in _WRITERS for name in names)

    @cached_property
    def runs(self) -> bool:
        """Whether it does more than define."""
        rest = (each for each in self.statements if not isinstance(each, _BINDING))
        return not all(map(_is_text, rest))

    @cached_property
    def returns(self) -> bool:
        """Whether it is a function's body: a `return` stands outside of functions."""
        return any(_returns(statement) for statement in self.statements)

    def source(self, statement: ast.stmt) -> str:
        """The lines of one of its statements."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(each.lineno for each in decorators)])
        return "".join(self._lines[first - 1 : statement.end_lineno]).rstrip("\n") + "\n"

    @cached_property
    def _lines(self) -> list[str]:
        # as the compiler counts lines: a form feed ends none
        return [f"{line}\n" for line in self.text.replace("\r\n", "\n").split("\n")]

    @cached_property
    def _future(self) -> list[ast.stmt]:
        return [
            statement
            for statement in self.statements
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        ]

    def after_future(self, text: str) -> str:
        """The snippet with `text` before it, but behind its imports from `__future__`."""
        end = max((statement.end_lineno or 0 for statement in self._future), default=0)
        return "".join([*self._lines[:end], text, *self._lines[end:]]) if text else self.text

    @property
    def without_future(self) -> str:
        """The snippet to be put behind other code, where such imports may not stand."""
        text = self.text
        for statement in self._future:
            text = text.replace(self.source(statement), "", 1)
        return text


def gathered(wanted: Set[str], before: Sequence[Snippet], after: Sequence[Snippet]) -> str:
    """What a program needs of the snippets around it: definitions and imports, in their order.

    wanted: names to look for; of several definitions the last one before the program counts, else
    the first one after it.
    """
    places: dict[str, tuple[int, int]] = {}
    others = [*before, *after]
    for number, snippet in enumerate(others):
        for index, statement in enumerate(snippet.statements):
            if isinstance(statement, _BINDING):
                for name in _bound(statement):
                    if number < len(before) or name not in places:
                        places[name] = (number, index)
    taken: set[tuple[int, int]] = set()
    left = set(wanted)
    while left:
        place = places.get(left.pop())
        if place is not None and place not in taken:
            taken.add(place)
            left |= _used(others[place[0]].statements[place[1]])
    if wanted - places.keys():  # it may come from a module of which all was imported
        taken |= {
            (number, index)
            for number, snippet in enumerate(before)
            for index, statement in enumerate(snippet.statements)
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        }
    if taken:
        taken |= {
            (number, index)
            for number in {number for number, _ in taken}
            for index, statement in enumerate(others[number].statements)
            if _is_setting(statement)
        }
    return "".join(others[n].source(others[n].statements[i]) for n, i in sorted(taken))


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.name if isinstance(node, ast.alias) else None


def _reads(node: ast.AST) -> bool:
    if _name(node) in _READERS and not isinstance(getattr(node, "ctx", None), ast.Store):
        return True
    if not isinstance(node, ast.Call) or _name(node.func) not in ("open", "read"):
        return False
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and first.value in (0, "/dev/stdin")


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_setting(statement: ast.stmt) -> bool:
    """Whether it is `sys.setrecursionlimit(...)`, which is written beside imports."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    settings = ("setrecursionlimit", "stack_size")
    return isinstance(call, ast.Call) and _name(call.func) in settings


def _returns(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return):
        return True
    inside: Iterable[ast.AST] = ast.iter_child_nodes(statement)
    is_scope = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return not is_scope and any(isinstance(n, ast.stmt) and _returns(n) for n in inside)


def _bound(tree: ast.AST, deep: bool = False) -> set[str]:
    """Names that code binds; deep: in functions, too."""
    names: set[str] = set()
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            if not deep:
                continue
        elif isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp) and not deep:
            continue
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        left += ast.iter_child_nodes(node)
    return names


def _used(tree: ast.AST) -> set[str]:
    """Names that code reads, without Python's own."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names - _OWN


_OWN = {*dir(builtins), "__name__", "__file__"}
