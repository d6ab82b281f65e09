"""What the scheduler moves about: a request being worked on, and one sample of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.prompt_logprobs import PromptLogprobs
from sharegen.engine.request import FinishReason, Request, TokenLogprobs


class Group:
    """A request whose prompt stands in the tree, and how far its samples are.

    leaf: the node where the prompt ends. drawn: the samples that are computed, of a greedy request
    the first alone, which stands for all; unfinished: how many of these are not finished yet. limit: the most
    output tokens of a sample, and limit_reason what sets it. prompt_logprobs: where the request
    wants them, from when its first tokens are drawn.
    """

    __slots__ = ("drawn", "leaf", "limit", "limit_reason", "prompt_logprobs", "request",
                 "unfinished")  # fmt: skip

    def __init__(self, request: Request, leaf: Node, context_length: int) -> None:
        self.request = request
        self.leaf = leaf
        self.drawn = request.samples[:1] if request.params.is_greedy else request.samples
        self.unfinished = len(self.drawn)
        self.prompt_logprobs: PromptLogprobs | None = None
        self.limit = most_tokens(request, context_length)
        within = self.limit == request.params.max_tokens
        self.limit_reason: FinishReason = "length" if within else "context"


def most_tokens(request: Request, context_length: int) -> int:
    """Output tokens of a sample at most: what is asked, or what the context has room for."""
    return min(request.params.max_tokens, context_length - len(request.prompt_token_ids))


class Sequence:
    """One sample: the tokens drawn so far, and its place while it runs.

    tokens: output tokens known to the host. fed: how many of them have been given to the model, in
    steps launched so far. replay: how many of them were known when the sequence joined, and are
    fed from the record rather than from the step before.
    logprobs: one entry a token, where the request wants them.
    row: its row in the batch (-1: none). blocks: the KV blocks of its suffix. joined: a number
    that grows with every admission; the youngest is preempted first.
    """

    __slots__ = ("blocks", "cumulative_logprob", "fed", "finished", "group", "joined", "logprobs",
                 "replay", "row", "sample", "tokens")  # fmt: skip

    def __init__(self, group: Group, sample: int, token: int, logprob: float) -> None:
        self.group = group
        self.sample = sample
        self.tokens = [token]
        self.cumulative_logprob = logprob
        self.fed = 0
        self.replay = 1
        self.row = -1
        self.blocks: list[int] = []
        self.joined = -1
        self.finished = False
        self.logprobs: list[TokenLogprobs] | None = None

    @property
    def samples(self) -> Seq[int]:
        """The samples that its tokens are: all of a greedy request."""
        request = self.group.request
        return request.samples if request.params.is_greedy else (self.sample,)
