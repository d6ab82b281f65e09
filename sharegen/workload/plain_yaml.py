"""Untrusted YAML: plain values, and never more of them than a recipe needs.

A few lines of YAML can stand for billions of values (aliases of aliases), for more levels than
Python can climb, or for a number that takes minutes to read. What an alias stands for is counted
before anything is made of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import yaml

MAX_BYTES = 2**18
MAX_VALUES = 10_000
MAX_CHARACTERS = 2**20
"""The most of all values together, aliases written out; MAX_VALUES counts the same way."""

MAX_DEPTH = 32
_MAX_DIGITS = 100

_KINDS = {f"tag:yaml.org,2002:{name}" for name in
          ("null", "bool", "int", "float", "str", "seq", "map", "merge")}  # fmt: skip


def load(text: str) -> Any:
    """The values of a YAML text: what JSON has. A date is text, as it is in the data.

    Raises yaml.MarkedYAMLError, with `problem` and where it knows the place `problem_mark`.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position)
        mark = yaml.Mark(error.name, error.position, line, 0, None, 0)
        problem = f"the character U+{error.character:04X} does not belong in YAML"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark) from None
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError):  # the reader's own, of numbers in its marks and escapes
        problem = "a number with too many digits"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=loader.get_mark()) from None


class _Loader(yaml.SafeLoader):
    """A SafeLoader that counts, and knows only the kinds of values that JSON has."""

    yaml_constructors: ClassVar = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in _KINDS
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in found if tag in _KINDS]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._characters = 0
        self._depth = 0
        self._deepest = 0  # level below the node that is composed
        self._anchored: dict[str, tuple[int, int, int]] = {}  # values, characters, levels

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            self._count_alias(event)
            return super().compose_node(parent, index)
        values, characters, deepest = self._values, self._characters, self._deepest
        self._deepest = self._depth
        self._count(1, len(getattr(event, "value", "")), 1, event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor is not None:
            levels = self._deepest - self._depth
            counted = (self._values - values, self._characters - characters, levels)
            self._anchored[event.anchor] = counted
        self._deepest = max(self._deepest, deepest)
        return node

    def _count_alias(self, event: Any) -> None:
        if event.anchor in self._anchored:
            self._count(*self._anchored[event.anchor], event)
        elif event.anchor in self.anchors:
            raise _problem(f"the alias *{event.anchor} stands in what it stands for", event)

    def _count(self, values: int, characters: int, levels: int, event: Any) -> None:
        self._values += values
        self._characters += characters
        self._deepest = max(self._deepest, self._depth + levels)
        if self._deepest > MAX_DEPTH:
            raise _problem(f"more than {MAX_DEPTH} levels", event)
        if self._values > MAX_VALUES:
            raise _problem(f"more than {MAX_VALUES:,} values, aliases written out", event)
        if self._characters > MAX_CHARACTERS:
            raise _problem(f"more than {MAX_CHARACTERS:,} characters, aliases written out", event)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        short = node.value if isinstance(node.value, str) else ""
        if node.tag.endswith(":int") and len(short) > _MAX_DIGITS:
            raise _problem(f"a number of {len(short):,} digits", node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):
            kind = node.tag.rpartition(":")[2]
            raise _problem(f"{short!r:.40} is no {kind}", node) from None
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise _problem("a text with half of a character", node)
        return value


def _problem(what: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)
