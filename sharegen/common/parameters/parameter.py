"""One thing that a user can set: what it means, its range, and its flag."""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cached_property
from numbers import Integral, Real
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin

from sharegen.errors import UsageError

Kind = Literal["filter", "penalty"]
"""What a sampling parameter does to the logits; filters do it only where tokens are drawn."""

_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_NOUNS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text",
          Sequence: "a list", dict: "a mapping"}  # fmt: skip


@dataclass(frozen=True)
class Flag:
    """The option of the command line that sets a parameter.

    names: with commas between; messages use the first. help: replaces the description in `--help`.
    default: what the declared default comes to, in words, where the value itself does not say it.
    complete: values that the shell offers. run_only: whether `run` alone has it.
    """

    names: str
    metavar: str | None = None
    help: str | None = None
    default: str | None = None
    complete: tuple[str, ...] = ()
    run_only: bool = False

    @property
    def name(self) -> str:
        """The name in messages, such as `--samples`."""
        return self.names.split(",")[0].split("/")[0]

    @property
    def attribute(self) -> str:
        """The name as an identifier, such as `max_tokens`."""
        return self.name.removeprefix("--").replace("-", "_")


@dataclass(frozen=True)
class Parameter:
    """The metadata of a field's type, as in `Annotated[float, Parameter("...", ge=0)]`.

    description: whole sentences. ge, gt, le, lt: the range of a number. kind: of a sampling
    parameter that changes logits. changes_samples: of a machine's parameter, whether it is part of
    a journal's identity. examples: values for the JSON schema.

    pydantic takes ranges and descriptions from it as from its own `Field`: it iterates over what
    says that it is a group of metadata.
    """

    description: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    flag: Flag | None = None
    kind: Kind | None = None
    changes_samples: bool = False
    examples: tuple[Any, ...] = ()

    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self) -> Iterator[Any]:
        from pydantic import Field

        limits: dict[str, Any] = self.limits
        yield from Field(**limits, allow_inf_nan=False if limits else None).metadata
        yield _Described(self)

    def in_schema(self) -> dict[str, Any]:
        """What a JSON schema says of it beside its type and range."""
        said: dict[str, Any] = {"description": self.description}
        return said | {"examples": list(self.examples)} if self.examples else said

    @property
    def limits(self) -> dict[str, float]:
        """The range, such as {"ge": 0, "lt": 1}."""
        found = {name: getattr(self, name) for name in _LIMITS}
        return {name: limit for name, limit in found.items() if limit is not None}

    def contains(self, value: float) -> bool:
        """Whether a number is finite and in the range."""
        return (
            (isinstance(value, Integral) or math.isfinite(value))
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


@dataclass(frozen=True)
class _Described:
    """Puts what is said of a parameter into a JSON schema."""

    parameter: Parameter

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), **self.parameter.in_schema()}


@dataclass(frozen=True)
class Declared:
    """A field of a group; hint: its type, without the parameter; default: MISSING for none."""

    name: str
    hint: Any
    default: Any
    parameter: Parameter

    @cached_property
    def kinds(self) -> tuple[Any, ...]:
        """Return its type, or those that are joined by `|`."""
        is_union = get_origin(self.hint) in (Union, UnionType)
        return get_args(self.hint) if is_union else (self.hint,)

    @property
    def want(self) -> str:
        """What a value must be, in words."""
        literals = [kind for kind in self.kinds if get_origin(kind) is Literal]
        choices = [repr(value) for kind in literals for value in get_args(kind)]
        known = [get_origin(kind) or kind for kind in self.kinds]
        nouns = [_NOUNS[kind] for kind in known if kind in _NOUNS]
        limits = self.parameter.limits
        if nouns and {"ge", "le"} <= limits.keys():
            nouns[0] += f" from {limits['ge']:g} to {limits['le']:g}"
        elif nouns and limits:
            words = " and ".join(f"{_LIMITS[name]} {limits[name]:g}" for name in limits)
            nouns[0] += f" {words}" if words.startswith("above") else f" of {words}"
        if type(None) in self.kinds:
            nouns.append("None")
        return ", or ".join([*nouns, *([" or ".join(choices)] if choices else [])])

    def takes(self, value: Any) -> bool:
        """Whether a value has one of the kinds and is in the range."""
        return any(self._is(value, kind) for kind in self.kinds)

    def _is(self, value: Any, kind: Any) -> bool:
        if kind in (int, float):
            number = Integral if kind is int else Real
            is_one = isinstance(value, number) and not isinstance(value, bool)
            return is_one and self.parameter.contains(value)
        if get_origin(kind) is Literal:
            return value in get_args(kind)
        if get_origin(kind) is Sequence:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            return is_list and all(self._is(each, get_args(kind)[0]) for each in value)
        return isinstance(value, get_origin(kind) or kind)


def declared(group: type) -> dict[str, Declared]:
    """The parameters of a class and of the groups that it inherits, by name, in order.

    A field that a subclass gives another type keeps the `Parameter` that it had, unless it brings
    one of its own.
    """
    found: dict[str, Declared] = {}
    owners = [each for each in group.__mro__ if not each.__module__.startswith("pydantic.")]
    for owner in reversed(owners):
        for name, hint in inspect.get_annotations(owner, eval_str=True).items():
            parameters = [each for each in get_args(hint)[1:] if isinstance(each, Parameter)]
            known = [found[name].parameter] if name in found else []
            for parameter in (parameters or known)[:1]:
                bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
                default = owner.__dict__.get(name, MISSING)
                found[name] = Declared(name, bare, default, parameter)
    return found


def values_of(group: type, holder: object) -> dict[str, Any]:
    """The values that an object has of a group's parameters, by name."""
    return {name: getattr(holder, name) for name in declared(group)}


def check(holder: object, parameters: Iterable[Declared]) -> None:
    """Raise UsageError for the first attribute that is out of its range, with what it must be."""
    for each in parameters:
        value = getattr(holder, each.name)
        if value is not each.default and not each.takes(value):  # most are, and there are many
            raise UsageError(f"{each.name} is {value!r}: it must be {each.want}")


Made = TypeVar("Made", bound=type)


def described(*groups: type) -> Callable[[Made], Made]:
    """A decorator that puts the parameters of a class into its docstring and its signature.

    groups: where parameters of its calls are declared, beside the class itself. The docstring gets
    an entry for each parameter, in the order of the signature: the description that is declared,
    and then what the docstring's own entry says beside it. The signature has their types alone.
    """

    def with_parameters(made: Made) -> Made:
        signature = inspect.signature(made)
        found: dict[str, Declared] = {}
        for group in (*groups, cast(type, made)):
            found |= declared(group)
        known = {name: found[name] for name in signature.parameters if name in found}
        made.__doc__ = _with_descriptions(made.__doc__ or "", signature.parameters, known)
        own = declared(made)
        bare = [
            each.replace(annotation=known[name].hint) if name in own else each
            for name, each in signature.parameters.items()
        ]
        made.__signature__ = signature.replace(parameters=bare)  # type: ignore[attr-defined]
        return made

    return with_parameters


_ENTRY = re.compile(r"^(?P<name>[a-z]\w*): (?P<said>.*(?:\n {4}.*)*)", re.MULTILINE)
_RAISES = re.compile(r"^Raises ", re.MULTILINE)


def _with_descriptions(text: str, names: Collection[str], known: Mapping[str, Declared]) -> str:
    """A docstring whose entries have what is declared: in place of its own, or before Raises."""
    text = inspect.cleandoc(text)
    entries = [each for each in _ENTRY.finditer(text) if each["name"] in names]
    own = {each["name"]: " ".join(each["said"].split()) for each in entries}
    said = {
        name: each.parameter.description.replace("null ", "None ") for name, each in known.items()
    }
    paragraphs = [
        textwrap.fill(
            " ".join(filter(None, (f"{name}:", said.get(name), own.get(name)))),
            width=100,
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name in names
        if name in said or name in own
    ]
    raises = _RAISES.search(text)
    start = entries[0].start() if entries else raises.start() if raises else len(text)
    end = entries[-1].end() if entries else start
    parts = (text[:start].strip(), "\n".join(paragraphs), text[end:].strip())
    return "\n\n".join(filter(None, parts)) + "\n"
