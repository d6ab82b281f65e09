"""Log-probabilities of prompt tokens: computed once for each node, however many prompts share it.

The row of a token gives the distribution of the one after it. So a node's rows serve its own
tokens but the first, and its last row serves the first tokens of its children. What a request wants
to know is asked for when its nodes are prefilled; a node that was prefilled without being asked is
not shared with a request that wants it (`can_tell`), which then computes one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.request import TokenLogprobs

if TYPE_CHECKING:
    from sharegen.engine.execute.drawn import Drawn
    from sharegen.engine.schedule.batch import Chunk

PromptLogprobs = list[TokenLogprobs | None]
"""One entry a prompt token; None for the first, which nothing comes before."""


class NodeLogprobs:
    """What the rows of one node say.

    top: how many of the likeliest tokens are wanted. own: entries of the node's tokens, without
    the first; following: by token, of what may come after the node. Both are laid out when the
    rows are prefilled and filled in when the numbers have come.
    """

    __slots__ = ("following", "own", "top")

    def __init__(self, top: int, length: int) -> None:
        self.top = top
        self.own: list[TokenLogprobs | None] = [None] * (length - 1)
        self.following: dict[int, TokenLogprobs | None] = {}


@dataclass(frozen=True)
class WantedLogprobs:
    """What a prefill batch is to say about prompt tokens.

    rows: [n] rows of the batch; tokens: [n] the prompt token that follows each one; top: the most
    that any node wants. places: [n] the node and the row's offset in it.
    """

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    top: int
    places: list[tuple[Node, int]]

    def note(self, drawn: Drawn) -> None:
        """Write what has come from the device down on the nodes."""
        tokens, logprobs = drawn.get()
        best = drawn.get_top()
        for (node, offset), token, logprob, (ids, of_ids) in zip(
            self.places, tokens, logprobs, best, strict=True
        ):
            known = node.logprobs
            assert known is not None
            top = dict(zip(ids[: known.top], of_ids[: known.top], strict=True))
            entry = TokenLogprobs(token, logprob, top)
            if offset < len(known.own):
                known.own[offset] = entry
            else:
                known.following[token] = entry


def want(leaf: Node, top: int) -> None:
    """A request whose prompt ends at `leaf` wants its tokens' log-probabilities."""
    for node in leaf.path():
        if node.logprobs is None:
            node.logprobs = NodeLogprobs(top, node.length)
        node.logprobs.top = max(node.logprobs.top, top)


def can_tell(node: Node, following: int, top: int) -> bool:
    """Whether a prompt that goes on beyond the node with `following` learns all it wants there."""
    if node.computed == 0:
        return True  # whoever wants something says so before it is prefilled
    known = node.logprobs
    if known is None or known.top < top:
        return False
    return node.computed < node.length or following in known.following


def wanted_of(chunks: Seq[Chunk], first_rows: Seq[int]) -> WantedLogprobs | None:
    """The rows of a batch that someone wants to know of; first_rows: of each chunk."""
    rows: list[int] = []
    tokens: list[int] = []
    places: list[tuple[Node, int]] = []
    top = 0
    for chunk, first in zip(chunks, first_rows, strict=True):
        node, known = chunk.node, chunk.node.logprobs
        if known is None:
            continue
        inner = range(chunk.start, min(chunk.end, node.length - 1))
        tokens += node.tokens[inner.start + 1 : inner.stop + 1].tolist()
        places += [(node, offset) for offset in inner]
        rows += range(first, first + len(inner))
        if chunk.end == node.length:
            after = [int(child.tokens[0]) for child in node.children]
            known.following = {token: known.following.get(token) for token in after}
            tokens += known.following
            places += [(node, node.length - 1)] * len(known.following)
            rows += [first + chunk.end - chunk.start - 1] * len(known.following)
        top = max(top, known.top)
    if not rows:
        return None
    return WantedLogprobs(np.array(rows), np.array(tokens), top, places)


def of_prompt(leaf: Node, top: int) -> PromptLogprobs:
    """The entries of a prompt whose nodes have all been prefilled and noted."""
    entries: PromptLogprobs = [None]
    parent: Node | None = None
    for node in leaf.path():
        assert node.logprobs is not None
        if parent is not None:
            assert parent.logprobs is not None
            entries.append(parent.logprobs.following[int(node.tokens[0])])
        entries += node.logprobs.own
        parent = node
    assert all(entry is not None for entry in entries[1:])
    return [entry and _at_most(entry, top) for entry in entries]


def _at_most(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    """The entry itself, shared with other prompts, unless it says more than is wanted."""
    if len(entry.top) <= top:
        return entry
    return TokenLogprobs(entry.token_id, entry.logprob, dict(list(entry.top.items())[:top]))
