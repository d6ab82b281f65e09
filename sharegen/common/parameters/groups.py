"""All groups of parameters that have flags, in the order of `--help`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from sharegen.common.parameters.data import (
    ChatParameters,
    DatasetParameters,
    FewShotParameters,
    KeepParameters,
    ModelParameters,
    OrderParameters,
    TokenParameters,
)
from sharegen.common.parameters.machine import MachineParameters
from sharegen.common.parameters.parameter import Declared, Flag, declared
from sharegen.common.parameters.sampling import RecipeSampling

_GROUPS: tuple[tuple[str, str, type], ...] = (
    ("Data", "", ModelParameters),
    ("Data", "dataset", DatasetParameters),
    ("Data", "few_shot", FewShotParameters),
    ("Data", "chat", ChatParameters),
    ("Data", "", OrderParameters),
    ("Sampling", "sampling", RecipeSampling),
    ("Machine", "machine", MachineParameters),
    ("Output", "", TokenParameters),
    ("Output", "keep", KeepParameters),
)
"""A panel of the help, a section of the recipe ("" is its top), and what both have."""


@dataclass(frozen=True)
class FlaggedKey:
    """A key of a job that a flag sets; key: with dots."""

    panel: str
    key: str
    declared: Declared
    flag: Flag

    @property
    def default(self) -> str | None:
        """What holds where neither the flag nor a recipe says it, in words; None for nothing."""
        value = self.declared.default
        if self.flag.default is not None:
            return self.flag.default
        if value is None or value is False or value is MISSING or value == ():
            return None
        return _in_words(value)

    def default_in(self, job: Mapping[str, Any]) -> str | None:
        """What holds where the flag is not given with a recipe that says `job`, in words."""
        section, _, name = self.key.rpartition(".")
        values = job.get(section) if section else job
        if not isinstance(values, Mapping) or name not in values:
            return self.default
        value = values[name]
        if value is None or value == []:
            return self.flag.default or "none"
        if isinstance(value, bool) and "/" in self.flag.names:
            return self.flag.names.split("/")[not value].removeprefix("--")
        return _in_words(value)


def _in_words(value: Any) -> str:
    """A value as it is typed, with line ends as \\n."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(json.dumps(each, ensure_ascii=False) for each in value)
    return json.dumps(str(value), ensure_ascii=False)[1:-1].replace('\\"', '"')


def flagged_keys() -> Iterator[FlaggedKey]:
    """The keys that have flags, in order."""
    for panel, section, group in _GROUPS:
        for name, each in declared(group).items():
            if each.parameter.flag is not None:
                key = f"{section}.{name}" if section else name
                yield FlaggedKey(panel, key, each, each.parameter.flag)
