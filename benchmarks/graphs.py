"""CUDA graphs that a short job captures for a longer one."""

from __future__ import annotations

from sharegen.engine.engine import Engine


def ready_for(engine: Engine, tokens: int) -> None:
    """Prepare for a short job that is to capture the graphs of one whose samples have so many
    tokens.

    A graph is of tables of one width, that of the longest sample so far.
    """
    engine.scheduler.rows.make_wide(max(1, engine.pool.blocks_for(tokens - 1)))
