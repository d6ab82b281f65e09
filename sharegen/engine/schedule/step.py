"""A batch and whom it is for: what the scheduler remembers of a step until it is collected.

The runner gets the batch alone. Who sits in which row changes while a step runs, so each step is
told who has left a row since.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.prompt_logprobs import AskedRow
from sharegen.engine.cache.state_slots import NO_SLOT
from sharegen.engine.core.batch import DecodeBatch, Int32, PrefillBatch
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a node, prefilled in one go.

    states: the slots that the states before it are read from, and those after it go to.
    """

    node: Node
    start: int
    end: int
    states: tuple[int, int] = (NO_SLOT, NO_SLOT)


@dataclass
class ChosenPrefill:
    """What a prefill batch is going to hold; tokens, samples: of its chunks and of its groups."""

    chunks: list[Chunk] = field(default_factory=list)
    groups: list[SequenceGroup] = field(default_factory=list)
    tokens: int = 0
    samples: int = 0

    def add_chunk(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.tokens += chunk.end - chunk.start


@dataclass(frozen=True)
class PrefillStep:
    """A step that computes prompts. chunks: of which nodes. groups: the requests whose first tokens
    are drawn, in the order of the batch's drawings. asked: [n] who wants what the batch says about
    prompt tokens. What fills the blocks of preempted sequences is for none of these.
    """

    batch: PrefillBatch
    chunks: list[Chunk]
    groups: list[SequenceGroup]
    asked: list[AskedRow]


@dataclass(frozen=True)
class DecodeStep:
    """A step that decodes. index: [num_rows] which of its output tokens the row draws, -1 where it
    sits the step out, or is empty. bounded: the sequences, by row, of which a grammar says what
    they may draw. left: by row, the sequences that have left it since the step was launched.
    """

    batch: DecodeBatch
    index: Int32
    bounded: dict[int, Sequence]
    left: dict[int, Sequence] = field(default_factory=dict)


Step = PrefillStep | DecodeStep
