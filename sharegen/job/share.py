"""One shard's share of a job: which problems are its own, found without a word to the others.

Its prompts are split where the tree of all prompts splits them, so that a sample's arithmetic is
the same here and in a run of the whole job.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sharegen.common.ragged import Ragged
from sharegen.common.shard import Shard
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.errors import NothingToDo
from sharegen.job.cut import Cut, cut
from sharegen.job.machine import load, single
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Problem, Workload, tokenise_problems

if TYPE_CHECKING:
    from sharegen.engine.model.loaded import LoadedModel


@dataclass(frozen=True)
class Share:
    """The problems and bad rows of one shard, as a workload.

    cut: the fingerprint of the cut; prompts: [num_problems] token ids of its problems; splits:
    [num_problems] where the whole job's tree splits them, and alone: [num_problems] whether one
    sample alone reads the last of these nodes (`Request.alone`).
    """

    shard: Shard
    cut: str
    workload: Workload
    prompts: Sequence[Sequence[int]]
    splits: Sequence[Sequence[int]]
    alone: Sequence[bool]

    @property
    def extent(self) -> dict[str, Any]:
        """What the run.json of its journal says of it."""
        return {"shard": {**asdict(self.shard), "cut": self.cut}}


def cut_job(
    configuration: Configuration,
    model: LoadedModel,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    num_parts: int,
) -> tuple[PrefixTree, Cut]:
    """The tree of a job's prompts, and its cut; a prompt without room for an answer is in no part.

    model: without weights is enough; prompts: token ids of the problems, by whose places both know
    them.
    """
    asked = [i for i, prompt in enumerate(prompts) if len(prompt)]
    tree = PrefixTree.build(
        [prompts[i] for i in asked],
        configuration.machine.block_size,
        alone=single(configuration, model, [problems[i].sampling for i in asked]),
    )
    context_length = model.context_length
    fitting = (place for place, i in enumerate(asked) if len(prompts[i]) < context_length)
    tree.restrict({place: asked[place] for place in fitting})
    tokens = [problem.sampling.problem_tokens(context_length) for problem in problems]
    return tree, cut(tree, tokens, num_parts)


def paths_of(tree: PrefixTree, prompts: Sequence[Sequence[int]]) -> tuple[Ragged, list[bool]]:
    """Where the path of each prompt is split, and whether one sample alone reads its last node.

    tree: of those that are not empty.
    """
    leaves = {place: node for node in tree.nodes() for place in node.requests}
    places = itertools.count()
    found = [leaves[next(places)] if prompt else None for prompt in prompts]
    alone = [leaf is not None and leaf.alone for leaf in found]
    return Ragged(leaf.splits() if leaf else () for leaf in found), alone


def share_of(configuration: Configuration, workload: Workload, shard: Shard, clock: Clock) -> Share:
    """The share of a shard in the job; reads the tokenizer and the model's config, no weights.

    The first shard reports rows that cannot be asked. Raises NothingToDo where there is
    nothing for this one.
    """
    model, tokenizer = load(configuration, weights=False)
    workload, prompts = tokenise_problems(workload, tokenizer, clock)
    tree, found = cut_job(configuration, model, workload.problems, prompts, shard.count)
    own = set(found.parts[shard.index - 1].problems.tolist())
    leaves = {i: node for node in tree.nodes() for i in node.requests if i in own}
    if shard.index == 1:
        own |= set(range(len(prompts))).difference(*(part.problems for part in found.parts))
    places = sorted(own)
    bad_rows = workload.bad_rows if shard.index == 1 else []
    if not places and not bad_rows:
        raise NothingToDo(
            f"--shard {shard}: there is nothing to do: the job has {len(prompts):,} problems"
        )
    return Share(
        shard,
        found.fingerprint,
        replace(workload, problems=[workload.problems[i] for i in places], bad_rows=bad_rows),
        [prompts[i] for i in places],
        [leaves[i].splits() if i in leaves else [len(prompts[i])] for i in places],
        [i in leaves and leaves[i].alone for i in places],
    )
