"""The ways of Hydragen's section 4.1 to run the same job."""

from __future__ import annotations

from dataclasses import dataclass

from sharegen.kernels.cost import EACH_ROW, CostModel


@dataclass(frozen=True)
class Way:
    """A way to run the engine. key: of its column. levels, is_read_by_each, has_attention: of the
    engine.
    """

    key: str
    name: str
    levels: int = 2
    is_read_by_each: bool = False
    has_attention: bool = True

    @property
    def costs(self) -> CostModel | None:
        """What an engine is told about reading shared nodes."""
        return EACH_ROW if self.is_read_by_each else None


WAYS = (
    Way("sharegen", "sharegen"),
    Way("nothing", "nothing shared", levels=0),
    Way("ceiling", "no attention", has_attention=False),
    Way("each", "stored once, read by each row", is_read_by_each=True),
)
"""In the order in which they are measured: the slowest comes last."""
