"""All groups of parameters that have flags, in the order of `--help`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, dataclass

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
        """What holds where the flag is not given, in words; None for a switch."""
        value = self.declared.default
        if value is False and self.flag.default is None:
            return None
        said = self.flag.default
        if said is None and value not in (None, (), MISSING):
            said = f"{value:g}" if isinstance(value, float) else str(value)
        known = ["the recipe's"] if self.panel in ("Data", "Sampling") else []
        return ", or ".join([*known, *([said] if said else [])]) or None


def flagged_keys() -> Iterator[FlaggedKey]:
    """The keys that have flags, in order."""
    for panel, section, group in _GROUPS:
        for name, each in declared(group).items():
            if each.parameter.flag is not None:
                key = f"{section}.{name}" if section else name
                yield FlaggedKey(panel, key, each, each.parameter.flag)
