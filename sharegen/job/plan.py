"""What a job shares: the tree of its prompts, and what that saves in prefill and memory.

Built from token ids and the model's sizes alone, so it can be told before anything is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sharegen.common.stop_rule import StopRule
from sharegen.engine.cache.prefix_tree import Node, PrefixTree, walk
from sharegen.job.cut import copied_by_workers
from sharegen.results.deciding import Standing, least

_SHOWN_FIRST, _SHOWN_LAST, _SHOWN_LEVELS = 2, 1, 12


@dataclass(frozen=True)
class Branch:
    """A node of the tree as it is shown; its KV is stored and computed once.

    tokens: its own; problems, samples: that pass through it; problem: the id of the problem that
    ends here. repeat: how many nodes, side by side or too deep to show, this one stands for (then
    `tokens` is their sum).
    """

    tokens: int
    problems: int
    samples: int
    problem: str | None = None
    repeat: int = 1
    children: list[Branch] = field(default_factory=list)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Branch:
        children = [cls.from_json(child) for child in values["children"]]
        return cls(**{**values, "children": children})


@dataclass(frozen=True)
class Reading:
    """One level of the tree (0: the roots) as the first batch reads it.

    nodes: at this level; apart: how many of them each row reads by itself. once, each:
    microseconds of a layer if all were read once for all rows below, and if by each row.
    """

    level: int
    nodes: int
    apart: int
    once: float
    each: float


@dataclass(frozen=True)
class Plan:
    """The numbers of a job; bytes where the name says so, tokens otherwise.

    asked: every sample's whole prompt; computed: the tree's tokens, each once; duplicated: of
        these, the ones that several prompts share in branches shorter than a block.
    kv_shared_bytes, kv_unshared_bytes: of the prompts, stored once or once a sample.
    fit: sequences that decode together in one engine; waves: how often all are filled.
    workers, copied: engines that share the job, and the prompt tokens that are computed once more
        because several of them need these. ranks: that the model of each is cut among, and
        weights_bytes those of one; the bytes of KV, too, are what one of them stores.
    rule: by which problems stop early, if by one; wave: samples of each that start first, for that
        many are needed whatever they say; resident: whether the prompts of all that run stay in
        the KV cache until they are decided.
    readings: how a GPU's decoding step reads the levels of the tree; none on a CPU.
    """

    problems: int
    samples: int
    max_tokens: int
    asked: int
    computed: int
    duplicated: int
    nodes: int
    kv_shared_bytes: int
    kv_unshared_bytes: int
    kv_suffix_bytes: int
    kv_cache_bytes: int
    fit: int
    waves: int
    branches: list[Branch]
    workers: int = 1
    copied: int = 0
    ranks: int = 1
    weights_bytes: int = 0
    rule: str | None = None
    wave: int = 0
    resident: bool = True
    readings: list[Reading] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        branches = [Branch.from_json(branch) for branch in values["branches"]]
        found = [Reading(**reading) for reading in values["readings"]]
        return cls(**{**values, "branches": branches, "readings": found})


def make_plan(
    tree: PrefixTree,
    prompts: Sequence[Sequence[int]],
    ids: Sequence[str],
    samples: int,
    max_tokens: int,
    *,
    num_blocks: int,
    kv_bytes_per_token: int,
    max_sequences: int,
    workers: int = 1,
    rule: StopRule | None = None,
    width: int = 1,
) -> Plan:
    """The plan of `samples` completions of up to `max_tokens` tokens for each prompt.

    tree: of the prompts; ids: their names. num_blocks: blocks of the KV cache, of so many bytes a
    token, and max_sequences, of each worker. rule: by which problems stop early. width: how many of
    the blocks one takes that several samples read.
    """
    asked = samples * sum(len(prompt) for prompt in prompts)
    total = samples * len(prompts)
    wave = samples if rule is None else least(rule, samples, Standing())
    in_waves = fitting_sequences(tree, wave, max_tokens, num_blocks, width)
    fitting = fitting_sequences(tree, samples, max_tokens, num_blocks, width)
    fit = min(fitting, max_sequences, total)
    stored = sum(node.length * (1 if node.alone else width) for node in tree.nodes())
    return Plan(
        problems=len(prompts),
        samples=total,
        max_tokens=max_tokens,
        asked=asked,
        computed=tree.num_tokens,
        duplicated=tree.num_duplicated,
        nodes=sum(1 for _ in tree.nodes()),
        kv_shared_bytes=stored * kv_bytes_per_token,
        kv_unshared_bytes=asked * kv_bytes_per_token,
        kv_suffix_bytes=max_tokens * kv_bytes_per_token,
        kv_cache_bytes=num_blocks * tree.block_size * kv_bytes_per_token,
        fit=fit,
        waves=math.ceil(total / (fit * workers)) if fit else 0,
        branches=_branches(tree, ids, samples),
        workers=workers,
        copied=copied_by_workers(tree, workers),
        rule=None if rule is None else rule.named,
        wave=wave,
        resident=in_waves >= min(max_sequences, wave * len(prompts)),
    )


def shared_tokens(tree: PrefixTree, some: Sequence[bool], others: Sequence[bool]) -> int:
    """Tokens of the tree that some of its prompts share with others, told by prompt."""
    below: dict[int, tuple[bool, bool]] = {}
    tokens = 0
    for node in reversed(list(tree.nodes())):
        marks = [below[id(child)] for child in node.children]
        marks += [(some[index], others[index]) for index in node.requests]
        below[id(node)] = has_some, has_others = any(m[0] for m in marks), any(m[1] for m in marks)
        tokens += node.length if has_some and has_others else 0
    return tokens


def most_blocks(
    tree: PrefixTree, samples: int, max_tokens: int, max_sequences: int, width: int = 1
) -> int:
    """KV blocks that a job can use at most: every node, and a full batch at its full length.

    A sequence may own two blocks more than it fills, which are assigned ahead. width: as above.
    """
    size = tree.block_size
    nodes = sum(_blocks_of(node, size, width) for node in tree.nodes())
    prompts = sum(len(node.requests) for node in tree.nodes())
    rows = min(max_sequences, samples * prompts)
    return nodes + rows * (math.ceil(max_tokens / size) + 2)


def _blocks_of(node: Node, block_size: int, width: int) -> int:
    return math.ceil(node.length / block_size) * (1 if node.alone else width)


def fitting_sequences(
    tree: PrefixTree, samples: int, max_tokens: int, num_blocks: int, width: int = 1
) -> int:
    """Sequences that fit together at their full length, taking the problems in order.

    width: as above.
    """
    size = tree.block_size
    suffix = math.ceil(max_tokens / size)
    free, fit = num_blocks, 0
    shortest = min(leaf.end for leaf in tree.nodes() if leaf.requests)
    for node in tree.nodes():
        free -= _blocks_of(node, size, width)
        wanted = samples * len(node.requests)
        if free < 0 or (wanted and free < suffix):
            break
        room = min(wanted, free // suffix)
        free, fit = free - room * suffix, fit + room
        if room < wanted:
            break
    return fit or int(math.ceil(shortest / size) * width + suffix <= num_blocks)


def _branches(tree: PrefixTree, ids: Sequence[str], samples: int) -> list[Branch]:
    """The tree to be shown: the middle of long lists of children, and deep levels, as one."""
    problems: dict[int, int] = {}
    first: dict[int, int] = {}
    for node in reversed(list(tree.nodes())):
        below = sum(problems[id(child)] for child in node.children)
        problems[id(node)] = len(node.requests) + below
        first[id(node)] = min([*node.requests, *(first[id(child)] for child in node.children)])

    def show(nodes: Sequence[Node], level: int) -> list[Branch]:
        nodes = sorted(nodes, key=lambda node: first[id(node)])
        if level > _SHOWN_LEVELS and any(node.children for node in nodes):
            return [fold(nodes)]
        if len(nodes) <= _SHOWN_FIRST + _SHOWN_LAST + 1:
            return [show_one(node, level) for node in nodes]
        return [
            *(show_one(node, level) for node in nodes[:_SHOWN_FIRST]),
            fold(nodes[_SHOWN_FIRST:-_SHOWN_LAST]),
            *(show_one(node, level) for node in nodes[-_SHOWN_LAST:]),
        ]

    def fold(nodes: Sequence[Node]) -> Branch:
        count = sum(problems[id(node)] for node in nodes)
        below = list(walk(nodes))
        tokens = sum(node.length for node in below)
        return Branch(tokens, count, count * samples, repeat=len(below))

    def show_one(node: Node, level: int) -> Branch:
        count = problems[id(node)]
        problem = ids[node.requests[0]] if node.requests else None
        below = show(node.children, level + 1)
        return Branch(node.length, count, count * samples, problem, 1, below)

    return show(tree.root_nodes, 1)
