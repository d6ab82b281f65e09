"""`sharegen run batch`: a job whose rows are requests, and the file of its answers.

The journal is the truth, here too. The file is made of it when all is there: whole, in the order of
the requests, and by one rename. A run that was ended is continued from the journal, and a file that
is lost is written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.common.files import make_folders, replace_file
from sharegen.common.log import log
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.text.vocabulary import Vocabulary
from sharegen.errors import CapacityError, DataError, ModelError, UsageError
from sharegen.job.machine import load
from sharegen.job.outcome import JobOutcome
from sharegen.job.run_job import run_job
from sharegen.job.sharing_plan import shared_lengths
from sharegen.job.template_clock import recorded_clock
from sharegen.results.export.openai import (
    Answerer,
    Usage,
    answered,
    as_lines,
    failed,
    is_answers,
    refused,
)
from sharegen.results.journal.family import family
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.output import refuse_journal, refuse_what_is_no_file
from sharegen.results.journal.pool import Pool
from sharegen.results.journal.record import Record
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import batch_requests
from sharegen.workload.prompt import tokenise_each
from sharegen.workload.request_body import Fault
from sharegen.workload.requests import BatchRequest, RequestedPrompts


@dataclass(frozen=True)
class Answers:
    """The file that was written: how many requests have an answer in it, and how many an error."""

    path: Path
    answered: int
    errors: int


def default_answers(configuration: Configuration) -> Path:
    """Name the answers of `requests.jsonl` `requests_output.jsonl`, in the folder that the command
    runs in.
    """
    assert configuration.dataset.source is not None
    name = Path(configuration.dataset.source).name.removesuffix(".gz")
    return Path(f"{name.rsplit('.', 1)[0]}_output.jsonl")


def journal_beside(answers: Path) -> Path:
    """Name the journal of `results.jsonl` `results.journal.jsonl`: the samples that the answers are
    made of.
    """
    return answers.with_name(f"{answers.name.removesuffix('.jsonl')}.journal.jsonl")


def run_batch(
    configuration: Configuration, output: Path | None = None, **options: Any
) -> tuple[JobOutcome, Answers | None]:
    """Answer every request that the journal does not have yet, then write all answers.

    output: the file of answers; the journal lies beside it. options: as for `run_job`. A shard
    writes its journal alone: a run without one writes the answers, when all shards are done.

    Raises what `run_job` raises; where all requests are known to have errors, the file has them.
    """
    path = output or default_answers(configuration)
    journal = journal_beside(path)
    _refuse_output(configuration, path)
    requests = batch_requests(configuration)
    named = next((request.model for request in requests if request.model is not None), None)
    if named not in (None, configuration.model, configuration.model_name):
        log(
            f"the requests ask for the model {named!r:.80}: {configuration.model_name} answers them"
        )
    is_whole = options.get("shard") is None
    try:
        outcome = run_job(configuration, journal, **options)
    except (CapacityError, DataError, ModelError):
        if is_whole:
            _write_errors(
                requests, [FoundJournal(file) for file in family(journal) if file.exists()], path
            )
        raise
    return outcome, _write(configuration, requests, outcome, path) if is_whole else None


def _refuse_output(configuration: Configuration, path: Path) -> None:
    """Raises UsageError where the answers would replace what is something else."""
    refuse_what_is_no_file(path)
    source = configuration.dataset.source
    if source is not None and path.resolve() == Path(source).resolve():
        raise UsageError(f"--output {path}: is the file of requests: choose another --output")
    refuse_journal(path)
    if path.exists() and not is_answers(path):
        raise UsageError(f"--output {path}: holds something else: choose another --output")


class _Recorded:
    """The requests' samples in the journals, by problem, and why a problem has none."""

    def __init__(self, journals: Sequence[FoundJournal]) -> None:
        self.samples: dict[str, dict[int, Record]] = {}
        self.errors: dict[str, str] = {}
        for record in Pool(journals).records():
            if record.sample is None:
                self.errors[record.problem_id] = str(record.error)
            else:
                self.samples.setdefault(record.problem_id, {})[record.sample] = record

    def error_of(self, request: BatchRequest) -> dict[str, Any] | None:
        """The line of a request that has no answer; None where it has one, or may get one."""
        name, asked = request.custom_id, request.asked
        if isinstance(asked, Fault):
            return refused(name, asked.message, asked.param, asked.code)
        for problem in request.problem_ids:
            if problem not in self.samples and problem in self.errors:
                return refused(name, self.errors[problem])
        records = self.choices_of(request)
        broken = next((record.error for record in records if record.error is not None), None)
        return None if broken is None else failed(name, broken)

    def choices_of(self, request: BatchRequest) -> list[Record]:
        """The samples that are its choices, in their order, as far as they are there."""
        assert isinstance(request.asked, RequestedPrompts)
        every = range(request.asked.sampling.samples)
        found = (self.samples.get(problem, {}) for problem in request.problem_ids)
        return [drawn[index] for drawn in found for index in every if index in drawn]


def _write_errors(
    requests: Sequence[BatchRequest], journals: Sequence[FoundJournal], path: Path
) -> None:
    """The file of answers where every request has an error, as it is known."""
    recorded = _Recorded(journals)
    lines = [recorded.error_of(request) for request in requests]
    known = [line for line in lines if line is not None]
    if len(known) == len(requests):
        _replace(path, known, journal_beside(path))


def _write(
    configuration: Configuration,
    requests: Sequence[BatchRequest],
    outcome: JobOutcome,
    path: Path,
) -> Answers:
    recorded = _Recorded(outcome.journals)
    errors = {request.custom_id: recorded.error_of(request) for request in requests}
    asked = [request for request in requests if errors[request.custom_id] is None]
    _, tokenizer = load(configuration, weights=False)
    tokens = _tokens(outcome, tokenizer)
    usages = _usages(asked, tokens, configuration.machine.block_size)
    spell = Vocabulary.of(tokenizer).utf8
    by = _answerer(configuration, outcome)
    lines: list[Mapping[str, Any]] = []
    for request in requests:
        line = errors[request.custom_id]
        if line is None:
            records, usage = recorded.choices_of(request), usages[request.custom_id]
            assert isinstance(request.asked, RequestedPrompts)
            line = answered(
                request.custom_id,
                request.endpoint,
                records,
                usage,
                by,
                spell,
                request.metadata,
                request.asked.tool_choice,
            )
        lines.append(line)
    _replace(path, lines, journal_beside(path))
    return Answers(path, len(asked), len(requests) - len(asked))


def _tokens(outcome: JobOutcome, tokenizer: Any) -> dict[str, Sequence[int]]:
    """Return the token ids of the prompts, by problem; without those that the chat template
    refuses.
    """
    problems = outcome.workload.problems
    found: Iterable[Sequence[int] | ModelError] | None = outcome.prompts
    if found is None:
        prompts = [problem.prompt for problem in problems]
        found = tokenise_each(prompts, tokenizer, recorded_clock(outcome.run))
    pairs = zip(problems, found, strict=True)
    return {problem.id: ids for problem, ids in pairs if not isinstance(ids, ModelError)}


def _usages(
    requests: Sequence[BatchRequest], tokens: Mapping[str, Sequence[int]], block_size: int
) -> dict[str, Usage]:
    """How many tokens the prompts of requests have, and how many of them they share."""
    names = [name for request in requests for name in request.problem_ids]
    tree = PrefixTree.build([tokens[name] for name in names], block_size)
    by_place = shared_lengths(tree)
    shared = {name: by_place[place] for place, name in enumerate(names)}
    return {
        request.custom_id: Usage(
            sum(len(tokens[name]) for name in request.problem_ids),
            sum(shared[name] for name in request.problem_ids),
        )
        for request in requests
    }


def _answerer(configuration: Configuration, outcome: JobOutcome) -> Answerer:
    """The model, and the time at which the last sample came."""
    created = max(int(journal.path.stat().st_mtime) for journal in outcome.journals)
    return Answerer(configuration.model_name, str(outcome.run.fingerprints["model"]), created)


def _replace(path: Path, lines: Sequence[Mapping[str, Any]], journal: Path) -> None:
    if path.exists() and not is_answers(path):  # which it was not when the job began
        raise DataError(
            f"{path}: somebody wrote something else to it meanwhile: move it away and run the same "
            f"command again, which makes the answers of {journal}"
        )
    try:
        make_folders(path.parent)
        replace_file(path, as_lines(lines))
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None
