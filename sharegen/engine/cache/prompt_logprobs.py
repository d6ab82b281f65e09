"""Log-probabilities of prompt tokens: computed once for each node, however many prompts share it.

The row of a token gives the distribution of the one after it. So a node's rows serve its own
tokens but the first, and its last row serves the first tokens of its children. What a request wants
to know is asked for when its nodes are prefilled; a node that was prefilled without being asked is
not shared with a request that wants it (`has_logprobs`), which then computes one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.stored_kv import NodeKV, NodeLogprobs
from sharegen.engine.core.request import Request, TokenLogprobs

PromptLogprobs = list[TokenLogprobs | None]
"""One entry a prompt token; None for the first, which nothing comes before, and for those that
nobody wants."""

Stored = Mapping[Node, NodeKV]


@dataclass(frozen=True)
class AskedRow:
    """A row of a node whose distribution someone wants to know.

    known: where the answer goes. offset: the row's place in the node; token: what follows it.
    """

    known: NodeLogprobs
    offset: int
    token: int

    def note(self, logprob: float, token_rank: int, ids: list[int], of_ids: list[float]) -> None:
        """Write down the token's log-probability, and those of the likeliest, best first."""
        top = self.known.top
        best = dict(zip(ids[:top], of_ids[:top], strict=True))
        entry = TokenLogprobs(self.token, logprob, best, token_rank)
        if self.offset < len(self.known.own):
            self.known.own[self.offset] = entry
        else:
            self.known.following[self.token] = entry


def _first_row(request: Request, node: Node) -> int:
    """The first of the node's rows that the request wants to know; its length where none."""
    return min(node.length, max(0, request.logprobs_from - 1 - node.position))


def want(stored: Stored, leaf: Node, request: Request) -> None:
    """A request whose prompt ends at `leaf` wants its tokens' log-probabilities, if it does."""
    top = request.params.prompt_logprobs
    if top is None:
        return
    for node in leaf.path():
        first = _first_row(request, node)
        if first == node.length:
            continue
        kv = stored[node]
        if kv.logprobs is None:
            kv.logprobs = NodeLogprobs(top, node.length)
        kv.logprobs.top = max(kv.logprobs.top, top)
        kv.logprobs.first = min(kv.logprobs.first, first)


def has_logprobs(stored: Stored, node: Node, request: Request) -> bool:
    """Whether a request whose prompt goes on beyond the node learns all it wants there."""
    top, kv = request.params.prompt_logprobs, stored[node]
    if top is None or kv.computed == 0:
        return True  # whoever wants something says so before it is prefilled
    first, known = _first_row(request, node), kv.logprobs
    if first == node.length:
        return True
    if known is None or known.top < top or known.first > first:
        return False
    return kv.computed < node.length or request.prompt_token_ids[node.end] in known.following


def asked_of(known: NodeLogprobs, node: Node, start: int, end: int) -> list[AskedRow]:
    """What the rows of tokens [start, end) of a node are to say, as they are prefilled."""
    inner = range(max(start, known.first), min(end, node.length - 1))
    following = node.tokens[inner.start + 1 : inner.stop + 1].tolist()
    asked = [AskedRow(known, i, token) for i, token in zip(inner, following, strict=True)]
    if end == node.length:
        after = [int(child.tokens[0]) for child in node.children]
        known.following = {token: known.following.get(token) for token in after}
        asked += [AskedRow(known, node.length - 1, token) for token in known.following]
    return asked


def note(
    asked: Seq[AskedRow], logprobs: Seq[float], best: Seq[tuple[int, list[int], list[float]]]
) -> None:
    """Write what has come from the device down where it was asked for."""
    for place, logprob, (token_rank, ids, of_ids) in zip(asked, logprobs, best, strict=True):
        place.note(logprob, token_rank, ids, of_ids)


def of_prompt(stored: Stored, leaf: Node, request: Request) -> PromptLogprobs | None:
    """The entries that a prompt wants, if it does, whose nodes have been prefilled and noted."""
    top, start = request.params.prompt_logprobs, request.logprobs_from
    if top is None:
        return None
    entries: PromptLogprobs = []
    above: NodeLogprobs | None = None
    for node in leaf.path():
        known = stored[node].logprobs
        entries.append(above.following[int(node.tokens[0])] if above is not None else None)
        entries += known.own if known is not None else [None] * (node.length - 1)
        above = known
    wanted = entries[start:]
    assert all(entry is not None for entry in wanted)
    nothing: PromptLogprobs = [None] * (len(entries) - len(wanted))
    return nothing + [entry and _at_most(entry, top) for entry in wanted]


def _at_most(entry: TokenLogprobs, top: int) -> TokenLogprobs:
    """The entry itself, shared with other prompts, unless it says more than is wanted."""
    if len(entry.top) <= top:
        return entry
    best = dict(list(entry.top.items())[:top])
    return TokenLogprobs(entry.token_id, entry.logprob, best, entry.rank)
