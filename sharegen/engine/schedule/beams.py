"""Beams in rows: one that goes on elsewhere shares the blocks that are full and copies the last.

The block that a row writes to is always its own. So a beam that takes the place of another needs no
new block: what the two have not in common is given up for a share of the other's, and the block
that is written now is copied into the one that was.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.core.beam_search import Choice
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


def begin(sequence: Sequence) -> None:
    """A group's first tokens have come: it is one beam, with none of them."""
    sequence.set_outputs([], 0.0)
    sequence.group.beams = [sequence]


def go_on(group: SequenceGroup, choices: Seq[Choice], rows: BatchRows, pool: BlockPool) -> None:
    """Let a group's beams be those that were chosen, each a token longer.

    The first that goes on from a beam stays in its row, the others take those of beams that died.
    """
    before = group.beams
    parents = {choice.parent for choice in choices}
    free = [beam for index, beam in enumerate(before) if index not in parents]
    after: list[Sequence] = []
    for choice in choices:
        beam = parent = before[choice.parent]
        if choice.parent not in parents:
            beam = free.pop() if free else Sequence(group, group.drawn[0], 0, 0.0)
            _follow(beam, parent, rows, pool)
        parents.discard(choice.parent)
        after.append(beam)
    for beam, choice in zip(after, choices, strict=True):
        beam.add(choice.token, choice.logprob)
        beam.replay = beam.num_tokens  # what the device drew last is not what goes in next
    group.beams = after


def _follow(beam: Sequence, parent: Sequence, rows: BatchRows, pool: BlockPool) -> None:
    """Give up what a beam has for what another has."""
    beam.set_outputs(list(parent.tokens), parent.cumulative_logprob)
    if beam.row < 0:
        return
    assert beam.fed == parent.fed and len(beam.blocks) == len(parent.blocks)
    full = beam.fed // pool.block_size
    pairs = zip(beam.blocks[:full], parent.blocks[:full], strict=True)
    common = next((i for i, (own, other) in enumerate(pairs) if own != other), full)
    shared = parent.blocks[common:full]
    for block in shared:
        pool.share(block)
    pool.free(beam.blocks[common:full])
    blocks = [*parent.blocks[:full], *beam.blocks[full:]]
    written = parent.blocks[full] if full < len(blocks) else None
    rows.rewrite(beam, blocks, written)
    rows.go_on_from(beam, parent)
