"""The prefix tree: which prompts share which tokens, found on token ids alone.

Sharing is never declared. Whole prompts go in; the few-shot -> problem -> samples tree, a long
document, a chat system prompt or a forest without a common root come out of the same code, at any
depth and ragged. (ChunkAttention's prefix tree keeps fixed-size chunks; ours splits at the longest
common prefix, so that nothing shared is stored twice.)

Two rules keep it exact and cheap:

* A branch shorter than one block is not worth a node: its tokens are duplicated into its children.
* A node never changes once it stands. Prompts that arrive later hang below the nodes that they
  match whole; a node is removed when no sequence passes through it any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from sharegen.engine.prompt_logprobs import NodeLogprobs

Tokens = npt.NDArray[np.int32]

Fits = Callable[[int, "Node"], bool]
"""Whether prompt i of an insertion may hang below a standing node."""


class Node:
    """A stretch of prompt tokens that every prompt below it shares.

    tokens: [length] int32, the node's own tokens; position: absolute position of the first one.
    requests: indices of the prompts that end with the node's last token.
    users: sequences and waiting requests whose path passes through the node (kept by the
        scheduler). blocks, computed: where its KV lies, and how many of its tokens have been
        prefilled (kept by the scheduler). logprobs: of its tokens, where a request wants them.
    forked: whether a fork hangs below it, however short it is.
    """

    __slots__ = ("blocks", "children", "computed", "contiguous", "forked", "logprobs", "parent",
                 "position", "requests", "tokens", "users")  # fmt: skip

    def __init__(self, tokens: Tokens, position: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.position = position
        self.parent = parent
        self.children: list[Node] = []
        self.requests: list[int] = []
        self.users = 0
        self.blocks: list[int] = []
        self.contiguous = True
        self.computed = 0
        self.logprobs: NodeLogprobs | None = None
        self.forked = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        """Absolute position after the node's last token."""
        return self.position + len(self.tokens)

    def path(self) -> list[Node]:
        """The nodes from the root down to this one, itself included."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def __repr__(self) -> str:
        return f"Node({self.length} tokens at {self.position}, {len(self.children)} children)"


class PrefixTree:
    """A forest of nodes; `insert` adds a batch of prompts, `remove` takes an unused node out.

    block_size: tokens of a KV block, the least that a shared branch must be long to be a node.
    levels: how many levels of nodes may be shared, for measuring what sharing is worth: with 0
    every request has all of its prompt to itself, with 1 only roots are shared. None: all.
    """

    def __init__(self, block_size: int, levels: int | None = None) -> None:
        self.block_size = block_size
        self.levels = sys.maxsize if levels is None else levels
        self.root_nodes: list[Node] = []

    @classmethod
    def build(cls, prompts: Sequence[Sequence[int]], block_size: int) -> PrefixTree:
        """The tree of `prompts`; `node.requests` are indices into them."""
        tree = cls(block_size)
        tree.insert(prompts)
        return tree

    def insert(
        self,
        prompts: Sequence[Sequence[int]],
        first_index: int = 0,
        fits: Fits = lambda index, node: True,
    ) -> list[Node]:
        """Add prompts (each at least one token); returns the node where each ends.

        Prompt i is known to its node as request `first_index + i`. The more prompts one call
        gets, the more sharing it can see: nodes that stand already are not split. fits: which of
        them a prompt may share.
        """
        arrays = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
        groups: dict[int, tuple[Node | None, list[int]]] = {}
        for i, tokens in enumerate(arrays):
            assert len(tokens) > 0, "an empty prompt has no node"
            node = self._deepest_match(i, tokens, fits)
            groups.setdefault(id(node), (node, []))[1].append(i)
        ends: list[Node | None] = [None] * len(arrays)
        for node, members in groups.values():
            start = node.end if node is not None else 0
            fresh = _compressed_trie(arrays, members, start, node)
            for child in self._dissolve(fresh, node, len(node.path()) if node else 0):
                self._children(node).append(child)
                for below in walk([child]):
                    for i in below.requests:
                        ends[i] = below
                    below.requests = [first_index + i for i in below.requests]
        return ends  # type: ignore[return-value]

    def hang(self, parent: Node, tokens: Sequence[int] | Tokens) -> Node:
        """A new node of `tokens` below a standing one, for a sequence that is forked there."""
        node = Node(np.asarray(tokens, dtype=np.int32), parent.end, parent)
        parent.children.append(node)
        parent.forked = True
        return node

    def remove(self, node: Node) -> None:
        """Take out a node without children."""
        assert not node.children, "a node with children is still in use"
        self._children(node.parent).remove(node)

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children, in tree (depth-first) order."""
        return walk(self.root_nodes)

    @property
    def num_tokens(self) -> int:
        """Tokens of all nodes: what prefill computes, and what the KV cache holds of prompts."""
        return sum(node.length for node in self.nodes())

    def _children(self, node: Node | None) -> list[Node]:
        return self.root_nodes if node is None else node.children

    def _deepest_match(self, index: int, tokens: Tokens, fits: Fits) -> Node | None:
        """The deepest standing node that `tokens` matches whole and goes on beyond.

        A prompt that ends at a standing node gets a node of its own: the logits of that node's
        last token are gone by now.
        """
        best: Node | None = None
        for _ in range(self.levels):
            start = best.end if best is not None else 0
            for child in self._children(best):
                long_enough = self.block_size <= child.length < len(tokens) - start
                if not long_enough or not np.array_equal(child.tokens, tokens[start : child.end]):
                    continue
                if fits(index, child):
                    best = child
                    break
            else:
                break
        return best

    def _dissolve(self, nodes: list[Node], parent: Node | None, depth: int) -> list[Node]:
        """Duplicate branches that are not worth a node into their children, from the top down."""
        kept: list[Node] = []
        shared = depth < self.levels
        stack = nodes[::-1]
        while stack:
            node = stack.pop()
            if not node.children or (node.length >= self.block_size and shared):
                node.parent = parent
                node.children = self._dissolve(node.children, node, depth + 1)
                kept += [node] if shared else _one_each(node)
                continue
            children, node.children = node.children, []
            for child in children:
                child.tokens = np.concatenate([node.tokens, child.tokens])
                child.position = node.position
            stack.extend(children[::-1])
            if node.requests:  # prompts that end here keep a leaf of their own
                stack.append(node)
        return kept


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes and all below them, depth first, parents before children."""
    stack = list(nodes[::-1])
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children[::-1])


def _one_each(leaf: Node) -> list[Node]:
    """The leaf, once for each prompt that ends with it."""
    copies = []
    for request in leaf.requests:
        copy = Node(leaf.tokens, leaf.position, leaf.parent)
        copy.requests = [request]
        copies.append(copy)
    return copies


def _compressed_trie(
    arrays: list[Tokens], members: list[int], start: int, parent: Node | None
) -> list[Node]:
    """The nodes of the members' tokens from `start` on, split where prompts part or end.

    Sorted prompts form the trie in one sweep: each shares with its left neighbour the longest
    prefix that it shares with anything before it. Children keep the order of first appearance.
    """
    # Big-endian bytes sort like the token sequences, by one memory comparison.
    keys = {i: arrays[i][start:].astype(">u4").tobytes() for i in members}
    ordered = sorted(members, key=lambda i: keys[i])
    top = Node(np.empty(0, np.int32), start, parent)
    path = [top]
    previous = np.empty(0, np.int32)
    for i in ordered:
        tokens = arrays[i][start:]
        common = _common_prefix(previous, tokens)
        below: Node | None = None
        while path[-1].end - start > common:
            below = path.pop()
        if below is not None and path[-1].end - start < common:
            path.append(_split(below, start + common - below.position))
        if len(tokens) > common:
            leaf = Node(tokens[common:], start + common, path[-1])
            path[-1].children.append(leaf)
            path.append(leaf)
        path[-1].requests.append(i)
        previous = tokens
    _order_by_first_request(top)
    return top.children


def _split(node: Node, length: int) -> Node:
    """Put a new node of `length` tokens above `node`, which keeps the rest; returns the new one."""
    upper = Node(node.tokens[:length], node.position, node.parent)
    assert node.parent is not None
    node.parent.children[-1] = upper  # the sweep only ever splits the newest child
    upper.children = [node]
    node.tokens = node.tokens[length:]
    node.position += length
    node.parent = upper
    return upper


def _common_prefix(a: Tokens, b: Tokens) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _order_by_first_request(top: Node) -> None:
    """Sort all children by the first request below them, so that tree order is job order."""
    first: dict[int, int] = {}
    for node in reversed(list(walk([top]))):
        node.children.sort(key=lambda child: first[id(child)])
        own = min(node.requests, default=1 << 62)
        below = first[id(node.children[0])] if node.children else 1 << 62
        first[id(node)] = min(own, below)
