"""A completion as a line of the journal: the problem it answers, and the answer in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharegen.common import confined
from sharegen.common.remarks import remark
from sharegen.results.answer import extract
from sharegen.results.record import Record
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Problem

if TYPE_CHECKING:
    import torch

    from sharegen.engine.request import Completion

_SHORT = 1_000  # characters, in which the patterns that ship take a moment whatever they are


def record_of(
    completion: Completion, problem: Problem, configuration: Configuration, dtype: torch.dtype
) -> Record:
    """The line of one sample; dtype: the model's, for the advice beside one that failed."""
    from sharegen.engine.model.probe import remedy

    answer = error = None
    text = completion.text or ""
    if completion.error is not None:
        error = f"{completion.error}: {remedy(dtype)}"
    else:
        answer = answer_in(text, configuration)
    return Record(
        problem_id=problem.id,
        sample=completion.sample,
        prompt_hash=problem.prompt_hash,
        completion=text,
        num_tokens=len(completion.token_ids),
        finish_reason=completion.finish_reason,
        cumulative_logprob=completion.cumulative_logprob,
        answer=answer,
        gold=problem.gold,
        token_ids=list(completion.token_ids) if configuration.token_ids else None,
        error=error,
        row_hash=problem.row_hash,
    )


def answer_in(text: str, configuration: Configuration) -> str | None:
    """The answer in a completion; None too where a pattern takes too long: the sample is kept.

    That may be a stranger's pattern, or the one that ships on a long text of nothing but marks.
    """
    wanted = configuration.answer
    if wanted is None:
        return None
    if configuration.ships and len(text) <= _SHORT:
        return extract(text, wanted.patterns, wanted.match)
    try:
        return confined.call(extract, text, wanted.patterns, wanted.match)
    except confined.Exceeded as error:
        remark(f"a pattern of the recipe's answer {error} with some samples: they have none")
        return None
