"""The names of the experiments with a line each; nothing heavy is imported to say them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sharegen.errors import UsageError

if TYPE_CHECKING:
    from benchmarks.papers.experiment import Experiment

NAMES = {
    "hydragen-throughput": "tokens per second (figures 3, 4, tables 2 to 7)",
    "hydragen-attention": "one layer by batch, prefix and suffix (figures 5, 8)",
    "hydragen-longdoc": "questions about needles in a long text (figure 6)",
    "hydragen-apps": "one level shared, two, and a larger batch (figure 7)",
    "hydragen-gsm8k": "self-consistency, nothing shared and all (table 1)",
    "chunk-kernel": "one layer by shared tokens, completion and batch",
    "chunk-arrivals": "requests that arrive by a Poisson process",
    "paged-blocks": "block sizes, what they waste, what sharing saves",
    "paged-preempt": "swap against recompute, by block size and length",
    "pat-trees": "one layer of 20 trees by 4 kinds of heads",
}
"""In the order in which they are listed; the module has the same name with underscores."""


def listing() -> str:
    """A line for each name."""
    width = max(map(len, NAMES))
    return "\n".join(f"  {name:{width}}  {line}" for name, line in NAMES.items())


def find(name: str) -> Experiment:
    """The experiment of a name. Raises UsageError, in one line that has the names."""
    if name not in NAMES:
        raise UsageError(f"there is no experiment {name!r}: take one of {', '.join(NAMES)}")
    module = import_module(f"benchmarks.papers.{name.replace('-', '_')}")
    found: Experiment = module.EXPERIMENT
    return found
