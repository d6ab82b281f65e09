"""A finished journal in the formats of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sharegen.common.files import make_folders, replace_file
from sharegen.common.log import log
from sharegen.errors import DataError, SharegenError, UsageError
from sharegen.job.reordering import load_asked
from sharegen.results.export.formats import SampledProblem, format_of, write_generations
from sharegen.results.export.kinds import Format
from sharegen.results.export.training import (
    Example,
    TrainingPrompt,
    is_for_training,
    write_examples,
)
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.output import refuse_journal, refuse_what_is_no_file
from sharegen.results.journal.pool import Pool, one_job
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import run_file_path, shown
from sharegen.results.report.outcomes import read_run
from sharegen.results.scoring.completion import completion_of
from sharegen.results.scoring.vote import natural_order
from sharegen.results.stopping.stopped import Stopped, counted
from sharegen.workload.code import schema_named
from sharegen.workload.configuration import Configuration
from sharegen.workload.dataset import read_rows
from sharegen.workload.items import problem_ids
from sharegen.workload.problem import Problem
from sharegen.workload.prompt import kept_prompt

_KEEP = "a run with --keep-prompt keeps the prompts in the journal"


@dataclass(frozen=True)
class SampleChoice:
    """Which samples are written: the right ones alone, at most so many of a problem."""

    only_right: bool = False
    per_problem: int | None = None

    @property
    def is_all(self) -> bool:
        return not self.only_right and self.per_problem is None


Samples = dict[str, list[Record]]
"""The samples of each problem, by index."""


def convert_journal(
    journal: Path, kind: Format, output: Path, choice: SampleChoice | None = None
) -> tuple[int, int]:
    """Write a journal's samples, and its shards', to `output`; how many problems and samples.

    Problems come in the order of the dataset, or in that of their ids for training, samples by
    index. bigcode knows problems by their position alone, so there a row without samples has an
    empty list. Raises DataError for a file that is no journal or has no samples, or whose prompts
    are needed and are nowhere, and UsageError without the run.json that names its dataset.
    """
    choice = choice or SampleChoice()
    if kind == "sharegen" and not choice.is_all:
        raise UsageError(
            "--format sharegen: a journal of some of its samples would pass for all of them: leave "
            "out --only-right and --per-problem, or choose another --format"
        )
    found = one_job(journal)
    if any(format_of(path) != "sharegen" for path in found.files):
        raise DataError(f"{journal}: is not a journal of sharegen: only these can be converted")
    run = found.run
    if run is None:
        raise UsageError(f"{journal}: has no {shown(journal)} that names its dataset")
    _refuse_journals(journal, kind, output)
    configuration = _of_all_rows(Configuration.from_settings(run.settings))
    if kind == "sharegen":
        return _convert_to_journal(journal, found, configuration, output)
    samples = _samples(journal, found, choice, with_failed=not is_for_training(kind))
    if is_for_training(kind):
        examples = list(_examples(journal, samples, configuration, is_table=kind == "parquet"))
        written = write_examples(output, kind, examples)
        return len({example.record.problem_id for example in written}), len(written)
    sampled = {p.problem_id: p for p in _all_sampled(journal, kind, samples, configuration)}
    counts = len(sampled), sum(len(problem.completions) for problem in sampled.values())
    if kind == "bigcode":
        _fill_up(sampled, configuration)
    write_generations(output, kind, sampled.values())
    return counts


def _of_all_rows(configuration: Configuration) -> Configuration:
    """The configuration without its row limit, which may have grown, unless it decides prompts."""
    if configuration.reorder:
        return configuration
    whole = configuration.dataset.model_copy(update={"limit": None})
    return configuration.model_copy(update={"dataset": whole})


def _samples(journal: Path, found: Pool, choice: SampleChoice, with_failed: bool) -> Samples:
    """The samples that are chosen, and of a job that a rule stopped those that count.

    with_failed: those that failed are samples too, without a text.
    """
    stopped = Stopped.of(found)
    if stopped is not None:
        log(
            f"{journal}: {stopped.in_words()}: those that count are written, and pass@k by the "
            "usual formula is biased on them"
        )
    right = _right(journal) if choice.only_right else None
    samples: Samples = {}
    is_any = False
    for record in counted(found.records(), stopped):
        if record.sample is None or not (record.is_drawn or with_failed):
            continue
        is_any = True
        if right is None or right.get((record.problem_id, record.sample)):
            samples.setdefault(record.problem_id, []).append(record)
    if not samples:
        what = "no sample that is right (--only-right)" if is_any else "no samples"
        raise DataError(f"{journal}: holds {what}")
    for name, of in samples.items():
        samples[name] = sorted(of, key=_index)[: choice.per_problem]
    return samples


def _index(record: Record) -> int:
    return record.sample or 0


def _right(journal: Path) -> dict[tuple[str, int], bool | None]:
    """Whether each sample is right: by the scores of programs, else by the gold answers.

    Raises DataError where nothing says what is right.
    """
    run = read_run(journal, str(journal))
    if not run.has_verdicts:
        raise DataError(
            f"{journal}: nothing says which samples are right: its lines have no gold answers, and "
            "`sharegen score` has judged none of them"
        )
    return {
        (outcome.problem_id, sample.index): sample.right
        for outcome in run.outcomes
        for sample in outcome.samples
    }


def _examples(
    journal: Path, samples: Samples, configuration: Configuration, is_table: bool
) -> Iterator[Example]:
    """The samples with what they answer, problems by id.

    is_table: what a prompt or a verdict is may be left open.
    """
    asked = _kept(samples, configuration)
    if any(name not in asked for name in samples):
        try:
            asked |= _rendered(journal, samples, configuration, asked)
        except SharegenError as error:
            if not is_table:
                raise
            log(f"{error}: the table has no prompts")
    right: dict[tuple[str, int], bool | None] = {}
    if is_table:
        try:
            right = _right(journal)
        except DataError as error:
            log(f"{error}: the column `right` is empty")
    for name in sorted(samples, key=natural_order):
        for record in samples[name] if is_table or name in asked else ():
            yield Example(record, asked.get(name), right.get((name, _index(record))))


def _kept(samples: Samples, configuration: Configuration) -> dict[str, TrainingPrompt]:
    """The prompts that the journal's lines hold, by problem."""
    goes_on = configuration.chat.continue_final_message
    kept = {}
    for record in (record for records in samples.values() for record in records):
        if isinstance(record.prompt, str):
            kept[record.problem_id] = TrainingPrompt(record.prompt)
        elif record.prompt and isinstance(record.prompt[0], dict):  # and not token ids
            kept[record.problem_id] = TrainingPrompt(record.prompt, record.tools, goes_on)
    return kept


def _rendered(
    journal: Path,
    samples: Samples,
    configuration: Configuration,
    kept: Mapping[str, TrainingPrompt],
) -> dict[str, TrainingPrompt]:
    """The prompts that are not kept, as the dataset gives them today.

    Those that were asked otherwise are left out. Raises a SharegenError where all are.
    """
    try:
        problems = {problem.id: problem for problem in load_asked(configuration).problems}
    except SharegenError as error:
        raise type(error)(f"{journal}: its lines hold no prompts, and {error}; {_KEEP}") from None
    asked: dict[str, TrainingPrompt] = {}
    faults = []
    for name in (name for name in samples if name not in kept):
        problem = problems.get(name)
        if problem is None or problem.prompt_hash != samples[name][0].prompt_hash:
            faults.append(
                f"{journal}: the prompt of problem {name!r} is not in its lines, and the dataset or"
                f" the recipe has changed since it was asked; {_KEEP}"
            )
        elif isinstance(problem.prompt.content, tuple):
            faults.append(f"{journal}: the prompt of problem {name!r} is token ids and no text")
        else:
            prompt = problem.prompt
            tools = None if prompt.options.tools is None else [*map(dict, prompt.options.tools)]
            goes_on = prompt.is_chat and prompt.options.continue_final_message
            asked[name] = TrainingPrompt(problem.prompt.content, tools, goes_on)
    if faults and not (asked or kept):
        raise DataError(faults[0])
    for fault in faults:
        log(f"{fault}: it is left out")
    return asked


def _refuse_journals(journal: Path, kind: Format, output: Path) -> None:
    """Refuse to overwrite a journal, unless an earlier conversion wrote it from this one.

    The same configuration does not say it: the same job may have been run twice.
    """
    if kind != "monkeys":  # which is a folder
        refuse_what_is_no_file(output)
    if output.resolve() == journal.resolve():
        raise UsageError(f"{output}: is the journal itself: choose another --output")
    there = FoundJournal(output).run if kind == "sharegen" else None
    if there is not None and there.conversion == _conversion_of(journal):
        return
    refuse_journal(output)
    if there is not None:
        raise UsageError(f"{output}: {shown(output)} is that of a journal: choose another --output")


def _conversion_of(journal: Path) -> dict[str, str]:
    return {"journal": str(journal.resolve())}


def _convert_to_journal(
    journal: Path, found: Pool, configuration: Configuration, output: Path
) -> tuple[int, int]:
    """The journal itself, with its run.json, in the order of the dataset; bad rows come last."""
    records = list(found.records())
    samples = [record for record in records if record.sample is not None]
    if not samples:
        raise DataError(f"{journal}: holds no samples")
    ids = {record.problem_id for record in samples}
    order = [problem.id for problem in load_asked(configuration).problems if problem.id in ids]
    if not order:
        raise DataError(_unknown(journal, min(ids)))
    place = {problem_id: index for index, problem_id in enumerate(order)}
    records.sort(key=lambda record: (place.get(record.problem_id, len(order)), _index(record)))
    assert found.run is not None
    try:
        make_folders(output.parent)
        replace_file(output, b"".join(record.to_line() for record in records))
        replace(found.run, conversion=_conversion_of(journal)).write(run_file_path(output))
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None
    return len(order), len(samples)


def _unknown(journal: Path, name: str) -> str:
    return f"{journal}: its problem {name!r} is not in the dataset that its run.json names"


def _problems(journal: Path, samples: Samples, configuration: Configuration) -> list[Problem]:
    """The problems of the dataset that have samples; others are logged and left out."""
    problems = [problem for problem in load_asked(configuration).problems if problem.id in samples]
    missing = sorted(samples.keys() - {problem.id for problem in problems})
    if missing and not problems:
        raise DataError(_unknown(journal, missing[0]))
    for name in missing:
        log(f"{_unknown(journal, name)}: it is left out")
    return problems


def _all_sampled(
    journal: Path, kind: Format, samples: Samples, configuration: Configuration
) -> list[SampledProblem]:
    """The problems with their samples: from the dataset, or from the journal's lines alone.

    The lines will do where it is known what was asked (or of no matter) and no program has to be
    taken out of a chat's answer.
    """
    kept = _kept(samples, configuration)
    try:
        problems = _problems(journal, samples, configuration)
    except SharegenError as error:
        is_known = kind == "human-eval" or (kind == "monkeys" and samples.keys() <= kept.keys())
        if is_known and configuration.dataset.rows is None:
            return [
                _from_lines(samples[name], kept.get(name))
                for name in sorted(samples, key=natural_order)
            ]
        hint = f"; {_KEEP}" if kind == "monkeys" else ""
        raise type(error)(f"{error}{hint}") from None
    return list(_sampled(problems, samples, configuration, kept))


def _from_lines(records: Sequence[Record], asked: TrainingPrompt | None) -> SampledProblem:
    first = records[0]
    prompt = "" if asked is None else str(kept_prompt(asked.content))
    fields = first.fields or {}
    texts = [record.completion for record in records]
    return SampledProblem(
        problem_id=first.problem_id,
        prompt=prompt,
        question=str(fields.get("question") or prompt),
        gt_answer=str(fields.get("answer") or first.gold or ""),
        completions=texts,
        programs=texts,
    )


def _fill_up(sampled: dict[str, SampledProblem], configuration: Configuration) -> None:
    """Put every row of the dataset up to the last one with samples in its place."""
    dataset = configuration.dataset
    assert dataset.source is not None
    rows = read_rows(dataset.source, dataset.config, dataset.split, dataset.revision).rows
    ids = problem_ids(rows, dataset)
    last = max(ids.index(problem_id) for problem_id in sampled)
    for problem_id in ids[: last + 1]:
        found = sampled.pop(problem_id, None)
        sampled[problem_id] = found or SampledProblem(problem_id, "", "", "", (), ())


def _sampled(
    problems: Sequence[Problem],
    samples: Samples,
    configuration: Configuration,
    kept: Mapping[str, TrainingPrompt],
) -> Iterator[SampledProblem]:
    is_chat, rows = configuration.chat.enabled, configuration.dataset.rows
    for problem in problems:
        texts = [record.completion for record in samples[problem.id]]
        stub = ""
        if rows is not None:
            judged = schema_named(rows).problem(problem.fields)
            texts = [completion_of(text, is_chat, judged) for text in texts]
            stub = judged.stub
        asked = kept.get(problem.id)
        yield SampledProblem(
            problem_id=problem.id,
            prompt=str(kept_prompt(asked.content) if asked else problem.prompt),
            question=str(problem.fields.get("question", problem.prompt.own)),
            gt_answer=str(problem.fields.get("answer", problem.gold or "")),
            completions=texts,
            programs=[stub + text for text in texts],
        )
