"""Dataset rows -> Problems: what is asked, with the prompt's text and the known answer.

A row that cannot be asked becomes a BadRow and the others go on; when there is no good row at all
the job cannot be meant so, and that is an error.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from sharegen.common.log import log
from sharegen.common.names import listed
from sharegen.common.ragged import Ragged
from sharegen.common.start_clock import START, TOKENISING
from sharegen.errors import DataError, ModelError, UsageError
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import OF_CONVERSATIONS, Configuration
from sharegen.workload.dataset import DatasetRows
from sharegen.workload.few_shot import examples_of
from sharegen.workload.files.content import file_hash
from sharegen.workload.gold import Gold, golds_of, unread_in_words
from sharegen.workload.items import (
    BadRow,
    Item,
    items_of,
    name_of,
    read_split,
    refuse_missing_columns,
)
from sharegen.workload.prompt import Prompt, PromptTemplate, asked_each
from sharegen.workload.request_body import Fault
from sharegen.workload.requests import BatchRequest, read_requests
from sharegen.workload.sampling_section import Sampling
from sharegen.workload.sections import Dataset
from sharegen.workload.template import Overrun, RenderError

_PATIENCE = 3  # rows with which the recipe goes over its limits


@dataclass(frozen=True)
class Problem:
    """One row to be asked: its id in the journal, its fields, the prompt and the gold answer.

    row_hash: of all that it brings to its samples: prompt, tests, own parameters. Not its gold
        answer, which is read anew, as the recipe says.
    sampling: how many samples are drawn, and how: as all of the job, or as its row says.
    text_hash: of the text that a chat template makes of the prompt, once it has.
    """

    id: str
    fields: Mapping[str, Any]
    prompt: Prompt
    gold: str | None
    row_hash: str
    sampling: Sampling
    text_hash: str | None = None

    @cached_property
    def prompt_hash(self) -> str:
        """What ties a sample in the journal to the prompt that it answers."""
        return content_hash(self.prompt.identity)


@dataclass(frozen=True)
class Reordered:
    """Problems in another order, each with its free fields in another order.

    given, computed: prompt tokens that are computed, each once, in the given order and in this one.
    fingerprint: of all prompts, where they depend on each other.
    """

    problems: list[Problem]
    given: int
    computed: int
    fingerprint: str


Arrange = Callable[[Sequence[Problem], Callable[[Problem, Sequence[str]], Problem]], Reordered]
"""Finds another order, with what renders a problem with its free fields in any."""


@dataclass(frozen=True)
class Workload:
    """Everything a configuration asks.

    fingerprints: of the few-shot text, the document and, for information, the dataset and its
    commit on the hub. reordered: what `--reorder` did. golds: the gold answers that the recipe
    looks for, by problem id, also of rows that cannot be asked. leaks: where the rows are that are
    few-shot examples as well.
    """

    problems: list[Problem]
    bad_rows: list[BadRow]
    fingerprints: dict[str, str]
    reordered: Reordered | None = None
    golds: Mapping[str, Gold] = field(default_factory=dict)
    leaks: Sequence[str] = ()

    def name_odd_rows(self) -> None:
        """Log each row that cannot be asked, and how many more have a fault."""
        for bad in self.bad_rows:
            log(bad.message)
        if self.leaks:
            also = f", and {len(self.leaks) - 1:,} more" if len(self.leaks) > 1 else ""
            log(
                f"{self.leaks[0]}{also}: few-shot examples that are asked, too: each is left out "
                "of its own examples, where the next row takes its place"
            )
        found = [self.golds[problem.id] for problem in self.problems if problem.id in self.golds]
        said = unread_in_words(found)
        if said is not None:
            log(said)


def load_problems(configuration: Configuration) -> list[Problem]:
    """The problems of a configuration, in the order of the dataset."""
    return load_workload(configuration).problems


def load_workload(configuration: Configuration, arrange: Arrange | None = None) -> Workload:
    """Read the dataset, fix the few-shot examples and render every prompt.

    arrange: puts the problems and their free fields into another order.

    Raises DataError when the dataset or the examples cannot be used at all.
    """
    dataset = configuration.dataset
    rows = read_split(dataset, dataset.split)
    if dataset.requests:
        return _requested(configuration, rows)
    refuse_missing_columns(rows.rows, dataset)
    shown = examples_of(configuration)
    template = PromptTemplate(configuration, [item.fields for item in shown.chosen])
    items, bad = items_of(rows.rows, dataset, dataset.where, dataset.limit)
    if not items and not bad:
        wanted = ", ".join(f"{k} = {v!r}" for k, v in dataset.where.items())
        has = listed({**rows.first.values, **dataset.fields})
        raise DataError(f"{name_of(dataset)}: no row with {wanted} (the first row has {has})")
    tests_of = _tests_of(dataset)
    try:
        golds = golds_of(items, configuration)
    except Overrun as error:
        raise UsageError(f"the recipe {configuration.recipe}: {error}") from None
    problems: list[Problem] = []
    leaks: list[str] = []
    overruns = 0

    def rendered(item: Item, order: Sequence[str] | None = None) -> Problem:
        own = shown.before(item)
        if own is shown.chosen:
            prompt = template.render(item.fields, order)
        else:
            prompt = _with_examples(configuration, own).render(item.fields, order)
            if order is None:
                leaks.append(item.row.where)
        digest = content_hash([prompt.identity, tests_of(item.row.values)])
        gold = golds[item.id].text if item.id in golds else None
        return Problem(item.id, item.fields, prompt, gold, digest, configuration.sampling)

    for item in items:
        try:
            problems.append(rendered(item))
        except RenderError as error:
            bad.append(BadRow(item.id, f"{item.row.where}: {error}"))
            overruns += isinstance(error, Overrun)
            if overruns == min(_PATIENCE, len(items)):
                raise UsageError(f"the recipe {configuration.recipe}: {bad[-1].error}") from None
    if not problems:
        raise _nothing_to_ask(bad)
    _refuse_equal_ids([*problems, *bad], name_of(dataset))
    _refuse_idle_chat(problems, configuration)
    fingerprints = {"dataset": rows.fingerprint, "few_shot": template.fingerprint}
    if rows.commit is not None:
        fingerprints["dataset_commit"] = rows.commit
    if dataset.document is not None:
        fingerprints["document"] = file_hash(Path(dataset.document))
    if configuration.chat.template is not None:
        fingerprints["chat_template"] = file_hash(Path(configuration.chat.template))
    if arrange is None:
        return Workload(problems, bad, fingerprints, golds=golds, leaks=leaks)
    items_by_id = {item.id: item for item in items}
    moved = arrange(problems, lambda problem, order: rendered(items_by_id[problem.id], order))
    fingerprints["order"] = moved.fingerprint
    return Workload(moved.problems, bad, fingerprints, moved, golds, leaks)


def _with_examples(configuration: Configuration, examples: Sequence[Item]) -> PromptTemplate:
    """The templates with the examples of one problem. Raises RenderError."""
    try:
        return PromptTemplate(configuration, [item.fields for item in examples])
    except DataError as error:
        raise RenderError(str(error)) from None


def batch_requests(configuration: Configuration) -> list[BatchRequest]:
    """The requests of a configuration whose dataset is an OpenAI batch file.

    Raises DataError where a line is none of a batch.
    """
    dataset = configuration.dataset
    rows = read_split(dataset, dataset.split).rows
    return read_requests(rows[: dataset.limit], configuration)


def _requested(configuration: Configuration, rows: DatasetRows) -> Workload:
    """A problem for each prompt of each request, with the request's own parameters."""
    problems: list[Problem] = []
    bad: list[BadRow] = []
    for request in read_requests(rows.rows[: configuration.dataset.limit], configuration):
        asked = request.asked
        if isinstance(asked, Fault):
            error = f"{request.where}: {asked.message}"
            bad.append(BadRow(request.custom_id, error, is_request=True))
            continue
        own = asked.sampling.model_dump(exclude_defaults=True, exclude={"samples"})
        for name, prompt in zip(request.problem_ids, asked.prompts, strict=True):
            digest = content_hash([prompt.identity, own])
            fields = {"custom_id": request.custom_id, **request.body}
            problems.append(Problem(name, fields, prompt, None, digest, asked.sampling))
    if not problems:
        raise _nothing_to_ask(bad)
    _refuse_equal_ids([*problems, *bad], name_of(configuration.dataset))
    fingerprints = {"dataset": rows.fingerprint}
    if configuration.chat.template is not None:
        fingerprints["chat_template"] = file_hash(Path(configuration.chat.template))
    return Workload(problems, bad, fingerprints)


def _nothing_to_ask(bad: Sequence[BadRow]) -> DataError:
    others = len(bad) - 1
    more = f" (and {others} more row{'s' if others > 1 else ''} like it)" if others else ""
    return DataError(f"no row can be asked: {bad[0].error}{more}")


@START.part(TOKENISING)
def tokenise_problems(workload: Workload, tokenizer: Any, clock: Clock) -> tuple[Workload, Ragged]:
    """Token ids of the problems; those whose conversation the chat template refuses are bad rows.

    clock: the time that chat templates see. Raises ModelError where that is all of them.
    """
    problems: list[Problem] = []
    bad: list[BadRow] = []

    def tokens() -> Iterator[array[int]]:
        found = asked_each([problem.prompt for problem in workload.problems], tokenizer, clock)
        for problem, asked in zip(workload.problems, found, strict=True):
            if isinstance(asked, ModelError):
                bad.append(BadRow(problem.id, f"problem {problem.id}: {asked}"))
                if len(bad) == len(workload.problems):
                    raise asked
                log(f"{bad[-1].error}: it is left out")
                continue
            text_hash = None if asked.text is None else content_hash(asked.text)
            problems.append(replace(problem, text_hash=text_hash))
            yield asked.ids

    prompts = Ragged(tokens())
    return replace(workload, problems=problems, bad_rows=[*workload.bad_rows, *bad]), prompts


def content_hash(content: Any) -> str:
    """A short hash of JSON data."""
    text = json.dumps(content, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _tests_of(dataset: Dataset) -> Callable[[Mapping[str, Any]], list[Any]]:
    """What takes from a row that which its programs are judged by."""
    if dataset.rows is None:
        return lambda values: []
    from sharegen.workload.code import schema_named

    return schema_named(dataset.rows).tests_of


def _refuse_equal_ids(problems: Iterable[Problem | BadRow], source: str) -> None:
    seen: set[str] = set()
    for problem in problems:
        if problem.id in seen:
            raise DataError(f"{source}: two rows have the id {problem.id!r}: ids must differ")
        seen.add(problem.id)


def _refuse_idle_chat(problems: Iterable[Problem], configuration: Configuration) -> None:
    """What is said of chats is a mistake where no prompt is one."""
    chat = configuration.chat
    if chat.enabled or any(problem.prompt.is_chat for problem in problems):
        return
    names = ("template", "date", *OF_CONVERSATIONS)
    given = next((name for name in names if getattr(chat, name) not in _UNSAID), None)
    if given is not None:
        raise UsageError(
            f"chat.{given}: no prompt is a chat: give --chat, rows of messages, or leave it out"
        )


_UNSAID: tuple[Any, ...] = (None, False, {}, [])


def random_key(problem_id: str) -> int:
    """The key of a problem's random stream: 63 bits of its id, whatever the row's position."""
    digest = hashlib.blake2b(problem_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
