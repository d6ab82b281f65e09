"""The prefix tree: which prompts share which tokens, found on token ids alone.

Sharing is never declared. Whole prompts go in; the few-shot -> problem -> samples tree, a long
document, a chat system prompt or a forest without a common root come out of the same code, at any
depth and ragged. (ChunkAttention's prefix tree keeps fixed-size chunks; ours splits at the longest
common prefix, so that nothing shared is stored twice.)

Two rules keep it exact and cheap:

* A branch shorter than one block is not worth a node: its tokens are duplicated into its children.
* A node never changes once it stands, and where the nodes of some prompts part is decided among
  the prompts of one `insert`, whatever stands: so the arithmetic of a prompt never depends on what
  has finished before. A node that stands already is not doubled. It is removed when no sequence
  passes through it any more.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Prompt = Sequence[int] | Tokens

LOOKAHEAD = 16_384
"""Prompts whose sharing is looked for together, where nobody says."""

Joins = Callable[["Node", "Node"], bool]
"""Whether a new node may be taken for a standing one with the same tokens in the same place."""


class Node:
    """A piece of prompt that every prompt below it shares.

    tokens: [length] int32, the node's own tokens; position: absolute position of the first one.
    requests: indices of the prompts that end with the node's last token.
    fork: whether it was made for a fork, and is not shared by later prompts.
    alone: whether it is known that one sample alone reads it.
    Its KV is the cache's business (`stored_kv.py`).
    """

    __slots__ = ("alone", "children", "fork", "parent", "position", "requests", "tokens")

    def __init__(self, tokens: Tokens, position: int, parent: Node | None) -> None:
        self.tokens = tokens
        self.position = position
        self.parent = parent
        self.children: list[Node] = []
        self.requests: list[int] = []
        self.fork = False
        self.alone = False

    @property
    def forked(self) -> bool:
        """Whether a fork hangs below it, however short it is."""
        return any(child.fork for child in self.children)

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

    def splits(self) -> list[int]:
        """Where the nodes of its path end, for `insert` into a tree of fewer prompts."""
        return [node.end for node in self.path()]

    def __repr__(self) -> str:
        return f"Node({self.length} tokens at {self.position}, {len(self.children)} children)"


class PrefixTree:
    """A forest of nodes; `insert` adds a batch of prompts, `remove` takes an unused node out.

    block_size: tokens of a KV block, the least that a shared branch must be long to be a node.
    shares: the policy beside that, whether nodes of a level (0: roots) may be shared at all; where
    none may, every request has all of its prompt to itself. All by default.
    """

    def __init__(self, block_size: int, shares: Callable[[int], bool] = lambda level: True) -> None:
        self.block_size = block_size
        self.shares = shares
        self.root_nodes: list[Node] = []

    @classmethod
    def build(
        cls,
        prompts: Sequence[Prompt],
        block_size: int,
        splits: Sequence[Sequence[int]] | None = None,
        alone: Sequence[bool] | None = None,
    ) -> PrefixTree:
        """Build the tree of all prompts together; `node.requests` are indices of prompts."""
        tree = cls(block_size)
        if len(prompts):
            tree.insert(prompts, splits=splits, alone=alone)
        return tree

    def insert(
        self,
        prompts: Sequence[Prompt],
        first_index: int = 0,
        joins: Joins = lambda node, standing: True,
        splits: Sequence[Sequence[int]] | None = None,
        alone: Sequence[bool] | None = None,
    ) -> list[Node]:
        """Add prompts (each at least one token); returns the node where each ends.

        Where their nodes part is decided among these prompts alone, whatever stands already. A
        node that stands with the same tokens in the same place is not doubled, and what is new
        hangs below it. Only where a prompt ends with it that has a node of its own: the logits of
        the last token are gone.
        Prompt i is known to its node as request `first_index + i`. joins: whether a new node may
        be taken for a standing one. splits: of each prompt where the nodes of its path end, the
        prompt's own length last: these prompts are some of a tree that was made of more, and part
        where they do there (`Node.splits`). alone: of each prompt whether one sample alone goes on
        from it, for the nodes' `alone`; none is where it is not said.
        """
        arrays = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
        assert all(len(tokens) for tokens in arrays), "an empty prompt has no node"
        if splits is None:
            fresh = self._dissolve(_compressed_trie(arrays))
        else:
            fresh = _split_as_told(arrays, splits)
        ends: list[Node | None] = [None] * len(arrays)
        for node in walk(fresh):
            for i in node.requests:
                ends[i] = node
            if alone is not None and len(node.requests) == 1 and not node.children:
                node.alone = alone[node.requests[0]]
            node.requests = [first_index + i for i in node.requests]
        self._graft(fresh, joins)
        return ends  # type: ignore[return-value]

    def hang(self, parent: Node | None, tokens: Prompt, fork: bool = False) -> Node:
        """A new node of `tokens` below a standing one, or a root, whatever stands beside it."""
        start = parent.end if parent is not None else 0
        node = Node(np.asarray(tokens, dtype=np.int32), start, parent)
        node.fork = fork
        self._children(parent).append(node)
        return node

    def deepest_match(
        self, prompt: Prompt, fits: Callable[[Node], bool] = lambda node: True
    ) -> Node | None:
        """The deepest standing node that `prompt` matches whole and goes on beyond."""
        tokens = np.asarray(prompt, dtype=np.int32)
        best: Node | None = None
        for level in itertools.count():
            start = best.end if best is not None else 0
            for child in self._children(best) if self.shares(level) else ():
                long_enough = self.block_size <= child.length < len(tokens) - start
                if not long_enough or not np.array_equal(child.tokens, tokens[start : child.end]):
                    continue
                if fits(child):
                    best = child
                    break
            else:
                break
        return best

    def remove(self, node: Node) -> None:
        """Take out a node without children."""
        assert not node.children, "a node with children is still in use"
        self._children(node.parent).remove(node)

    def restrict(self, places: Mapping[int, int]) -> None:
        """Keep the requests of `places` alone, under the numbers that it gives them."""
        for node in reversed(list(self.nodes())):
            node.requests = [places[i] for i in node.requests if i in places]
            node.children = [child for child in node.children if child.requests or child.children]
        self.root_nodes = [root for root in self.root_nodes if root.requests or root.children]

    def nodes(self) -> Iterator[Node]:
        """All nodes, parents before children, in tree (depth-first) order."""
        return walk(self.root_nodes)

    @property
    def num_tokens(self) -> int:
        """Tokens of all nodes: what prefill computes, and what the KV cache holds of prompts."""
        return sum(node.length for node in self.nodes())

    @property
    def num_duplicated(self) -> int:
        """Tokens that several prompts share in branches shorter than a block."""
        siblings = [self.root_nodes, *(node.children for node in self.nodes())]
        return sum(_num_repeated([node.tokens for node in nodes]) for nodes in siblings)

    def clear(self) -> None:
        """Take out all nodes."""
        self.root_nodes.clear()

    def shared_below(self, node: Node | None) -> Iterator[Node]:
        """The nodes below one, or the roots, that may be shared."""
        return (each for each in self._children(node) if not each.fork and not each.alone)

    def split(self, node: Node, length: int) -> Node:
        """Put a new node of the first `length` tokens above a standing one; returns the new one.

        The standing one keeps the rest, the prompts that end with it and all that is below.
        """
        assert 0 < length < node.length
        return _split(node, length, self._children(node.parent))

    def _children(self, node: Node | None) -> list[Node]:
        return self.root_nodes if node is None else node.children

    def _graft(self, fresh: list[Node], joins: Joins) -> None:
        """Hang new nodes beside those that stand, or what is below them below their twins."""
        stack: list[tuple[Node | None, list[Node]]] = [(None, fresh)]
        while stack:
            parent, nodes = stack.pop()
            siblings = self._children(parent)
            like = {(node.length, int(node.tokens[0])) for node in nodes if node.children}
            twins = {
                s.tokens.tobytes(): s
                for s in siblings
                if (s.length, int(s.tokens[0])) in like and not s.fork and not s.alone
            }
            for node in nodes:
                twin = twins.get(node.tokens.tobytes()) if node.children else None
                if twin is not None and joins(node, twin):
                    stack.append((twin, node.children))
                    if not node.requests:
                        continue
                    node.children = []  # the prompts that end here are for themselves
                node.parent = parent
                siblings.append(node)

    def _dissolve(self, nodes: list[Node]) -> list[Node]:
        """Duplicate branches that are not worth a node into their children, from the top down."""
        roots: list[Node] = []
        levels: list[tuple[Node | None, list[Node], int]] = [(None, nodes, 0)]
        while levels:
            parent, below, depth = levels.pop()
            kept: list[Node] = []
            shared = self.shares(depth)
            stack = below[::-1]
            while stack:
                node = stack.pop()
                if not node.children or (node.length >= self.block_size and shared):
                    node.parent = parent
                    kept += [node] if shared else _one_each(node)
                    levels.append((node, node.children, depth + 1))
                    continue
                children, node.children = node.children, []
                for child in children:
                    child.tokens = np.concatenate([node.tokens, child.tokens])
                    child.position = node.position
                stack.extend(children[::-1])
                if node.requests:  # prompts that end here keep a leaf of their own
                    stack.append(node)
            if parent is None:
                roots = kept
            else:
                parent.children = kept
        return roots


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes and all below them, depth first, parents before children."""
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


def _compressed_trie(arrays: list[Tokens]) -> list[Node]:
    """The nodes of the prompts, split where they part or end.

    Sorted prompts form the trie in one sweep: each shares with its left neighbour the longest
    prefix that it shares with anything before it. Children keep the order of first appearance.
    """
    top = Node(np.empty(0, np.int32), 0, None)
    path = [top]
    previous = np.empty(0, np.int32)
    for i in _sorted(arrays):
        tokens = arrays[i]
        common = common_prefix(previous, tokens)
        below: Node | None = None
        while path[-1].end > common:
            below = path.pop()
        if below is not None and path[-1].end < common:
            assert below.parent is not None
            path.append(_split(below, common - below.position, below.parent.children))
        if len(tokens) > common:
            leaf = Node(tokens[common:], common, path[-1])
            path[-1].children.append(leaf)
            path.append(leaf)
        path[-1].requests.append(i)
        previous = tokens
    _order_by_first_request(top)
    return top.children


def _split_as_told(arrays: list[Tokens], splits: Sequence[Sequence[int]]) -> list[Node]:
    """The nodes of prompts whose places of parting are known; children as in `_compressed_trie`."""
    top = Node(np.empty(0, np.int32), 0, None)
    below: dict[tuple[int, bytes], Node] = {}  # by the parent's id and the node's tokens
    for i, (tokens, ends) in enumerate(zip(arrays, splits, strict=True)):
        assert ends[-1] == len(tokens), "the last node of a path ends with its prompt"
        node = top
        for end in ends:
            piece = tokens[node.end : end]
            child = below.get((id(node), piece.tobytes()))
            if child is None:
                child = Node(piece, node.end, node)
                node.children.append(child)
                below[id(node), piece.tobytes()] = child
            node = child
        node.requests.append(i)
    for root in top.children:
        root.parent = None
    return top.children


def _num_repeated(arrays: list[Tokens]) -> int:
    """Tokens that sequences have in common with another, less those of one copy."""
    order = [arrays[i] for i in _sorted(arrays)]
    return sum(common_prefix(a, b) for a, b in itertools.pairwise(order))


def _sorted(arrays: list[Tokens]) -> list[int]:
    """The places of token sequences in their order.

    Some are sorted at a time and merged, so that no second copy of all prompts is held.
    """

    def key(place: int) -> bytes:
        # Big-endian bytes sort like the token sequences, by one memory comparison.
        return arrays[place].astype(">u4").tobytes()

    count = len(arrays)
    runs = [
        sorted(range(start, min(start + LOOKAHEAD, count)), key=key)
        for start in range(0, count, LOOKAHEAD)
    ]
    return runs[0] if len(runs) == 1 else list(heapq.merge(*runs, key=key))


def _split(node: Node, length: int, siblings: list[Node]) -> Node:
    """Put a new node of `length` tokens above `node`, which keeps the rest; returns the new one.

    siblings: where `node` stands; the newest ones are looked at first, for a sweep splits these.
    """
    upper = Node(node.tokens[:length], node.position, node.parent)
    place = next(i for i in range(len(siblings) - 1, -1, -1) if siblings[i] is node)
    siblings[place] = upper
    upper.children = [node]
    node.tokens = node.tokens[length:]
    node.position += length
    node.parent = upper
    return upper


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many tokens two sequences begin with in common."""
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
