"""What the scheduler moves about: a request being worked on, and one sample of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, Protocol

import numpy as np

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.prompt_logprobs import PromptLogprobs
from sharegen.engine.cache.stored_kv import Suffix
from sharegen.engine.core.batch import Drawing
from sharegen.engine.core.beam_search import BeamSearch
from sharegen.engine.core.random_key import RequestKey
from sharegen.engine.core.request import FinishReason, Request, TokenLogprobs
from sharegen.engine.schedule.row_outputs import RowOutputs


class SequenceGroup:
    """A request whose prompt stands in the tree, and how far its samples are.

    leaf: the node where the prompt ends. seed: of its random streams. drawn: the samples that are
    computed, of a greedy request the first alone, which stands for all; unfinished: how many of
    these are not finished yet. limit: the most output tokens of a sample, and limit_reason what
    sets it. prompt_logprobs: where the request wants them, from when its first tokens are drawn.
    required: samples with an index below it are wanted whatever comes of them (None: all are).
    num_cached: prompt tokens that others had computed when it was its turn; None before.
    cancelled: samples of the request that are wanted no more. alive: from when the first tokens
    are drawn, the sequences that are not finished. place: among the groups that were drawn.
    search: where the request is a beam search, which is drawn as one sample, the first; beams:
    then the sequences of that sample, one a beam, which run, wait and end together. ends: the
    tokens that end its samples by themselves, and what each says; stops: the stop strings of its
    request, both from when somebody has looked for them; context: what the texts of its samples
    follow, from when one of them has ended.
    """

    __slots__ = ("_key", "_prompt", "alive", "beams", "cancelled", "context", "drawn", "ends",
                 "leaf", "limit", "limit_reason", "num_cached", "place", "prompt_logprobs",
                 "request", "required", "search", "stops", "unfinished")  # fmt: skip

    def __init__(self, request: Request, leaf: Node, context_length: int, seed: int = 0) -> None:
        self.request = request
        self.leaf = leaf
        self.drawn = request.samples[:1] if request.params.is_greedy else request.samples
        self.unfinished = len(self.drawn)
        self.required = None if request.params.is_greedy else request.required
        self.cancelled: set[int] = set()
        self.alive: dict[int, Sequence] = {}
        self.num_cached: int | None = None
        self.place = 0
        self.prompt_logprobs: PromptLogprobs | None = None
        self.limit = most_tokens(request, context_length)
        within = self.limit == request.params.max_tokens
        self.limit_reason: FinishReason = "length" if within else "context"
        self.search: BeamSearch[Any] | None = None
        if request.beam is not None:
            self.search = BeamSearch(request.beam, self.limit)
        self.beams: list[Sequence] = []
        self.ends: Any = None
        self.stops: Any = None
        self.context: Any = None
        self._prompt = request.tokens if request.params.reads_prompt else np.empty(0, np.int32)
        own = request.params.seed
        self._key = RequestKey(seed if own is None else own, request.stream_key)

    def end_at(self, most: int) -> None:
        """There is no memory for more than so many output tokens: whoever gets there fails."""
        if most < self.limit:
            self.limit, self.limit_reason = most, "error"

    def drawing(self, sample: int) -> Drawing:
        """How the tokens of one of its samples are drawn."""
        beam = self.request.beam
        width = 0 if beam is None else beam.beam_width
        key = self._key.of_sample(sample)
        return Drawing(self.request.params, key, self._prompt, width)

    def is_required(self, sample: int) -> bool:
        return self.required is None or sample < self.required

    def distance(self, sample: int) -> int:
        """How far the index of a sample is beyond those that are required."""
        return 0 if self.required is None else sample - self.required

    @property
    def keeps(self) -> bool:
        """Whether the KV of its samples stays when they end: that of beams has died by then."""
        return self.request.keep and self.search is None

    @property
    def num_required(self) -> int:
        """Rows for the samples to be drawn that are required; before the first tokens come."""
        if self.required is None:
            return len(self.drawn) * self.request.rows
        return sum(map(self.is_required, self.drawn))

    def samples_of(self, sample: int) -> Seq[int]:
        """The samples that one stands for: all of a greedy request, bar the cancelled."""
        samples = self.request.samples if self.request.params.is_greedy else (sample,)
        return [sample for sample in samples if sample not in self.cancelled]


def most_tokens(request: Request, context_length: int) -> int:
    """Output tokens of a sample at most: what is asked, or what the context has room for."""
    room = context_length + request.fills_context - len(request.prompt_token_ids)
    asked = request.params.max_tokens
    return room if asked is None else min(asked, room)


class Rows(Protocol):
    """The rows of a batch, as a sequence that has one knows them."""

    outputs: RowOutputs

    def fed(self, row: int) -> int:
        """How many of its own tokens the sequence of a row has fed."""
        ...


class Sequence(Suffix):
    """One sample: the tokens drawn so far, and its place while it runs.

    replay: how many tokens were known when the sequence joined, and are fed from the record rather
    than from the step before.
    logprobs: one entry a token, where the request wants them.
    structured: whether its text has to be of a grammar, so that the host must know a token before
    the next one can be drawn; matcher: where in the grammar it is, from when the host has looked.
    row: its row in the batch (-1: none); rows: the rows of that batch, while it has one, which then
    say how many tokens it has fed. joined: a number that grows with every admission (-1: it
    had none yet); the youngest is preempted first. waits: whether it is ready for a row.
    """

    __slots__ = ("_fed", "_logprob", "_tokens", "finished", "group", "joined", "logprobs",
                 "matcher", "replay", "row", "rows", "sample", "structured", "waits")  # fmt: skip

    def __init__(self, group: SequenceGroup, sample: int, token: int, logprob: float) -> None:
        self.rows: Rows | None = None
        super().__init__(group.leaf)
        self.group = group
        self.sample = sample
        self._tokens: list[int] | None = [token]  # None: the rows have them
        self._logprob = logprob
        self.replay = 1
        self.row = -1
        self.joined = -1
        self.finished = False
        self.waits = False
        self.logprobs: list[TokenLogprobs] | None = None
        self.structured = group.request.params.structured_outputs is not None
        self.matcher: Any = None

    @property
    def fed(self) -> int:
        """How many of its tokens have been given to the model, in steps launched so far."""
        return self._fed if self.rows is None else self.rows.fed(self.row)

    @fed.setter
    def fed(self, tokens: int) -> None:
        assert self.rows is None
        self._fed = tokens

    @property
    def tokens(self) -> list[int]:
        """The output tokens that the host knows: a copy where the rows have them."""
        return self._tokens if self._tokens is not None else self._outputs.tokens(self.row)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens) if self._tokens is not None else self._outputs.count(self.row)

    def token(self, index: int) -> int:
        """One of its tokens, without a copy of all."""
        if self._tokens is not None:
            return self._tokens[index]
        return self._outputs.token(self.row, index)

    @property
    def cumulative_logprob(self) -> float:
        return self._logprob if self._tokens is not None else self._outputs.logprob(self.row)

    @property
    def _outputs(self) -> RowOutputs:
        assert self.rows is not None
        return self.rows.outputs

    def add(self, token: int, logprob: float) -> None:
        """It has drawn another token."""
        if self._tokens is None:
            self._outputs.add(self.row, token, logprob)
        else:
            self._tokens.append(token)
            self._logprob += logprob

    def set_outputs(self, tokens: list[int], logprob: float) -> None:
        """It has drawn these tokens and no others; logprob: of all of them."""
        assert self._tokens is not None, "the rows have its tokens"
        self._tokens, self._logprob = tokens, logprob

    def hand_over(self) -> None:
        """Let the rows have its tokens, which it has just joined, until it leaves them."""
        group = self.group
        self._outputs.begin(self.row, self.tokens, self._logprob, group.limit, group.stops)
        self._tokens = None

    def take_back(self) -> None:
        """Have its tokens itself again, before it leaves its row."""
        if self._tokens is None:
            tokens, self._logprob = self.tokens, self.cumulative_logprob
            self._outputs.end(self.row)
            self._tokens = tokens

    @property
    def samples(self) -> Seq[int]:
        """The samples that its tokens are: all of a greedy request, bar the cancelled."""
        return self.group.samples_of(self.sample)

    @property
    def together(self) -> Seq[Sequence]:
        """The sequences that run, wait and end with it: the beams of its search, or itself
        alone.
        """
        return self.group.beams or (self,)

    @property
    def drawing(self) -> Drawing:
        """How its tokens are drawn."""
        return self.group.drawing(self.sample)
