"""A completion as a line of the journal: the problem it answers, and the answer in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sharegen.common.names import listed
from sharegen.errors import UsageError
from sharegen.results.answers.reader import AnswerReader
from sharegen.results.journal.record import Record
from sharegen.workload.configuration import Configuration
from sharegen.workload.files.arrow import BINARY
from sharegen.workload.problem import Problem

if TYPE_CHECKING:
    from sharegen.engine.core.request import Completion, TokenLogprobs

_DEEPEST = 100  # levels of a kept field: a line may have some more, and is read back


def record_of(
    completion: Completion, problem: Problem, configuration: Configuration, dtype: str
) -> Record:
    """The line of one sample; dtype: the model's, for the advice beside one that failed."""
    from sharegen.engine.core.request import NO_DISTRIBUTION

    answer = error = None
    text = completion.text or ""
    if completion.error is not None:
        error = completion.error
        if error.startswith(NO_DISTRIBUTION):
            from sharegen.engine.model.probe import remedy

            error = f"{error}: {remedy(dtype)}"
    else:
        answer = answer_in(text, configuration, completion.finish_reason)
    keep, asked = configuration.keep, problem.sampling
    is_first = completion.sample == 0  # the prompt's are the same for all
    return Record(
        problem_id=problem.id,
        sample=completion.sample,
        prompt_hash=problem.prompt_hash,
        completion=text,
        num_tokens=len(completion.token_ids),
        finish_reason=completion.finish_reason,
        cumulative_logprob=completion.cumulative_logprob,
        score=completion.score,
        answer=answer,
        gold=problem.gold,
        token_ids=list(completion.token_ids) if configuration.token_ids else None,
        logprobs=requested(completion.logprobs, asked.logprobs),
        prompt_logprobs=requested(
            completion.prompt_logprobs, asked.prompt_logprobs if is_first else None
        ),
        error=error,
        row_hash=problem.row_hash,
        text_hash=problem.text_hash,
        prompt=_as_json(problem.prompt.content) if keep.prompt else None,
        tools=_as_json(problem.prompt.options.tools) if keep.prompt else None,
        fields=kept_fields(problem, keep.fields),
    )


def requested(
    entries: Sequence[TokenLogprobs | None] | None, wanted: int | None
) -> list[Any] | None:
    """The log-probabilities that were asked for; with `--verify` the engine returns more."""
    if wanted is None or entries is None:
        return None
    return [
        one and [one.token_id, _as_json(one.logprob), _likeliest(one.top, wanted)]
        for one in entries
    ]


def _likeliest(top: Mapping[int, float], count: int) -> dict[str, Any]:
    return {str(token): _as_json(value) for token, value in islice(top.items(), count)}


def refuse_unknown_fields(configuration: Configuration, problems: Sequence[Problem]) -> None:
    """Raises UsageError where a field is to be kept that no row has."""
    for name in configuration.keep.fields:
        if problems and not any(name in problem.fields for problem in problems):
            has = listed(problems[0].fields)
            raise UsageError(f"--keep {name}: no row has this field (the first has {has})")
        if any(problem.fields.get(name) is BINARY for problem in problems):
            raise UsageError(f"--keep {name}: the field is binary, and journals hold text")


def kept_fields(problem: Problem, names: Sequence[str]) -> dict[str, Any] | None:
    """The row's fields of these names as JSON has them; null where the row lacks one."""
    if not names:
        return None
    return {name: _as_json(problem.fields.get(name)) for name in names}


def _as_json(value: Any, depth: int = 1) -> Any:
    """A value of a row without what JSON lacks; what lies too deep is text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple) and depth == _DEEPEST:
        return json.dumps(value, default=str)
    if isinstance(value, Mapping):
        return {str(key): _as_json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner, depth + 1) for inner in value]
    return str(value)


def reader_of(configuration: Configuration) -> AnswerReader | None:
    """What reads the answers of a configuration's samples; None where none are asked for."""
    wanted = configuration.answer
    if wanted is None:
        return None
    return AnswerReader(
        wanted.extract, tuple(wanted.patterns), wanted.match, configuration.is_bundled
    )


def answer_in(
    text: str, configuration: Configuration, finish_reason: str | None = None
) -> str | None:
    """The answer in a completion; None where it has none, or the recipe asks for none."""
    reader = reader_of(configuration)
    found = None if reader is None else reader.read(text, finish_reason)
    return None if found is None else found.answer
