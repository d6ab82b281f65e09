"""A finished journal in the formats of other tools."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sharegen.common.remarks import remark
from sharegen.errors import DataError, UsageError
from sharegen.results.completion import completion_of
from sharegen.results.formats import Format, SampledProblem, format_of, write_generations
from sharegen.results.output import refuse_journal
from sharegen.results.pool import Pool, one_job
from sharegen.results.record import Record
from sharegen.results.run_file import RunFile, replace_file, run_file_path
from sharegen.results.stopped import Stopped, counted
from sharegen.workload.configuration import Configuration
from sharegen.workload.dataset import read_rows
from sharegen.workload.problem import Problem, load_problems, problem_ids


def convert_journal(journal: Path, kind: Format, output: Path) -> tuple[int, int]:
    """Write a journal's samples, and its shards', to `output`; how many problems and samples.

    Problems come in the order of the dataset, samples by index. bigcode knows problems by their
    position alone, so there a row without samples has an empty list. Raises DataError for a file
    that is no journal or has no samples, and UsageError without the run.json that names its
    dataset.
    """
    found = one_job(journal)
    if any(format_of(path) != "sharegen" for path in found.files):
        raise DataError(f"{journal}: is not a journal of sharegen: only these can be converted")
    run = found.run
    if run is None:
        raise UsageError(f"{journal}: has no {run_file_path(journal).name} that names its dataset")
    _refuse_journals(journal, kind, output)
    configuration = Configuration.from_settings(run.settings)
    completions: dict[str, dict[int, str]] = defaultdict(dict)
    stopped = Stopped.of(found)
    if stopped is not None and kind != "sharegen":
        remark(
            f"{journal}: {stopped.in_words()}: those that count are written, and pass@k by the "
            "usual formula is biased on them"
        )
    for record in found.records() if kind == "sharegen" else counted(found.records(), stopped):
        if record.sample is not None:
            completions[record.problem_id][record.sample] = record.completion
    if not completions:
        raise DataError(f"{journal}: holds no samples")
    whole = configuration.dataset.model_copy(update={"limit": None})
    configuration = configuration.model_copy(update={"dataset": whole})
    problems = [p for p in load_problems(configuration) if p.id in completions]
    missing = sorted(completions.keys() - {problem.id for problem in problems})
    faults = [
        f"{journal}: its problem {name!r} is not in the dataset that its run.json names"
        for name in missing
    ]
    if faults and not problems:
        raise DataError(faults[0])
    if kind == "sharegen":
        _write_sorted(found, output, [problem.id for problem in problems], journal)
        return len(problems), sum(map(len, completions.values()))
    for name, fault in zip(missing, faults, strict=True):
        del completions[name]
        remark(f"{fault}: it is left out")
    sampled = {p.problem_id: p for p in _sampled(problems, completions, configuration)}
    if kind == "bigcode":
        _fill_up(sampled, configuration)
    write_generations(output, kind, sampled.values())
    return len(problems), sum(map(len, completions.values()))


def _refuse_journals(journal: Path, kind: Format, output: Path) -> None:
    """Write over no journal, unless all of it is in this one: an earlier conversion says so.

    The same configuration does not say it: the same job may have been run twice.
    """
    if output.resolve() == journal.resolve():
        raise UsageError(f"{output}: is the journal itself: choose another --output")
    there = RunFile.read(run_file_path(output)) if kind == "sharegen" else None
    if there is not None and there.conversion == _conversion_of(journal):
        return
    refuse_journal(output)
    if there is not None:
        name = run_file_path(output).name
        raise UsageError(f"{output}: {name} is that of a journal: choose another --output")


def _conversion_of(journal: Path) -> dict[str, str]:
    return {"journal": str(journal.resolve())}


def _write_sorted(found: Pool, output: Path, order: list[str], journal: Path) -> None:
    """The journal itself, with its run.json, in the order of the dataset; bad rows come last."""
    place = {problem_id: index for index, problem_id in enumerate(order)}

    def position(record: Record) -> tuple[int, int]:
        return place.get(record.problem_id, len(order)), record.sample or 0

    lines = b"".join(record.to_line() for record in sorted(found.records(), key=position))
    assert found.run is not None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        replace_file(output, lines)
        replace(found.run, conversion=_conversion_of(journal)).write(run_file_path(output))
    except OSError as error:
        raise DataError(f"{output}: cannot be written: {error.strerror}") from None


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
    problems: list[Problem], completions: dict[str, dict[int, str]], configuration: Configuration
) -> Iterator[SampledProblem]:
    is_chat, rows = configuration.chat.enabled, configuration.dataset.rows
    for problem in problems:
        stub = str(problem.fields["prompt"]) if rows == "humaneval" else ""
        texts = [
            completion_of(text, is_chat and rows is not None, stub)
            for _, text in sorted(completions[problem.id].items())
        ]
        yield SampledProblem(
            problem_id=problem.id,
            prompt=str(problem.prompt),
            question=str(problem.fields.get("question", problem.prompt.own)),
            gt_answer=str(problem.fields.get("answer", problem.gold or "")),
            completions=texts,
            programs=[stub + text for text in texts],
        )
