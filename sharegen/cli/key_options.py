"""The options that set keys of a job, made of what the keys declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from sharegen.cli.completion import complete_dataset, complete_from
from sharegen.cli.flags import unescape, workers
from sharegen.cli.parameters import option, parse_size
from sharegen.common.parameters.groups import FlaggedKey, flagged_keys

_PARSERS = {"machine.kv_cache_memory": parse_size}
"""What reads the text of a flag, where its type alone does not say it."""

_MEANINGS: dict[str, Callable[[Any], Any]] = {
    "machine.workers": workers,
    "sampling.stop": lambda texts: [unescape(text) for text in texts],
}
"""What the key's value is by what the flag says, where that is not the same."""

DATASET = "dataset.source"  # beside a source --dataset takes a preset: `resolve` tells which it is


def _type(each: FlaggedKey) -> Any:
    """What Typer reads: a list for a flag that may be repeated, and words as they are."""
    lists = [kind for kind in each.declared.kinds if get_origin(kind) in (list, Sequence)]
    if lists:
        return list[get_args(lists[0])[0]]  # type: ignore[misc]
    kinds = [kind for kind in each.declared.kinds if kind is not type(None)]
    is_word = any(get_origin(kind) is Literal for kind in kinds)
    return str if is_word else kinds[0]


def _field(each: FlaggedKey) -> tuple[str, Any, Any]:
    """A field of a dataclass of options; a switch is False where it is not given, others None."""
    flag = each.flag
    more: dict[str, Any] = {}
    if each.key in _PARSERS:
        more["parser"] = _PARSERS[each.key]
    if each.key == DATASET:
        more["autocompletion"] = complete_dataset
    elif flag.complete:
        more["autocompletion"] = complete_from(*flag.complete)
    help = flag.help or each.declared.parameter.description
    said = option(each.panel, flag.names, help, flag.metavar, each.default, **more)
    if each.declared.kinds == (bool,) and "/" not in flag.names:
        return flag.attribute, Annotated[bool, said], False
    return flag.attribute, Annotated[_type(each) | None, said], None


def options_of(name: str, keys: Iterable[FlaggedKey], *bases: type) -> Any:
    """A frozen dataclass of the options for keys, after those of `bases`."""
    return make_dataclass(name, map(_field, keys), bases=bases, frozen=True)


KEYS = tuple(each for each in flagged_keys() if not each.flag.run_only)
RUN_KEYS = tuple(each for each in flagged_keys() if each.flag.run_only)


def said_by(options: object) -> dict[str, Any]:
    """What options say, shaped like a recipe, with None for what was not given."""
    values: dict[str, Any] = {}
    for each in (*KEYS, *RUN_KEYS):
        value = getattr(options, each.flag.attribute, None)
        if each.key == DATASET or value is None or value == []:
            continue
        if value is False and "/" not in each.flag.names:  # a switch that was not given
            continue
        section, _, name = each.key.rpartition(".")
        meaning = _MEANINGS.get(each.key)
        into = values.setdefault(section, {}) if section else values
        into[name] = value if meaning is None else meaning(value)
    return values
