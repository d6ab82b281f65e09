"""What `--show-config` prints: the job as recipe, preset and flags make it, as YAML."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import yaml

from sharegen.common.printable import printable

if TYPE_CHECKING:
    from sharegen.workload.configuration import Configuration

_SAMPLING = {"samples", "temperature", "top_p", "top_k", "max_tokens", "stop", "seed"}
"""What is said of the sampling also where it is the default."""


def print_configuration(configuration: Configuration) -> None:
    """Print the resolved configuration on stdout, without what is off."""
    from sharegen.workload.configuration import OF_CONVERSATIONS

    unused: Any = None
    if not configuration.chat.enabled:  # then the templates of turns are of no matter
        of_rows = {"template", "date", *OF_CONVERSATIONS}
        unused = {"chat": type(configuration.chat).model_fields.keys() - of_rows}
    values = configuration.model_dump(exclude_defaults=True, exclude=unused)
    if not values.get("chat"):
        values.pop("chat", None)
    sampling = configuration.sampling.model_dump(include=_SAMPLING)
    values["sampling"] = sampling | values.get("sampling", {})
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    sys.stdout.write(printable(text))


class _Dumper(yaml.SafeDumper):
    """Writes text with newlines on one line, as the recipes do."""

    def represent_str(self, text: str) -> yaml.ScalarNode:
        style = '"' if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)
