"""How a job came out, and whether that is on record already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sharegen.errors import DataError, JournalError, ModelError
from sharegen.job.job_content import JobContent
from sharegen.job.sharing_plan import SharingPlan
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import refuse_other_job
from sharegen.results.journal.keys import Key, Keys
from sharegen.results.journal.pool import Pool
from sharegen.results.journal.rereading import Golds, Rereading
from sharegen.results.journal.run_file import BESIDE, OTHER, BrokenRunFile, RunFile, as_json
from sharegen.results.journal.totals import together
from sharegen.results.stopping.stopped import Stopped
from sharegen.workload.problem import Problem, Workload


@dataclass(frozen=True)
class JobOutcome:
    """A finished job: where its journal is, how it went, and what it asked.

    drawn: samples of this run; 0 when the journals had them all. journals: those that have any,
    beside the run's own that of a shard, say. prompts: token ids of the workload's problems, where
    the run came to know them. reading: how their answers are read.
    """

    path: Path
    run: RunFile
    workload: Workload
    drawn: int
    journals: tuple[FoundJournal, ...]
    reading: Rereading
    prompts: Sequence[Sequence[int]] | None = None

    @property
    def plan(self) -> SharingPlan | None:
        """The sharing, as the journal's last run found it."""
        plan = self.run.stats.get("plan")
        try:
            return SharingPlan.from_json(plan) if plan else None
        except (KeyError, TypeError):  # of another version, or edited
            return None


def all_failed(key: Key, error: str | None) -> ModelError:
    """The error of a job without a single drawn sample."""
    return ModelError(
        f"every sample failed: problem {key.problem_id}, sample {key.sample}: {error} "
        "(--retry-failed draws them again)"
    )


def outcome_on_record(
    content: JobContent,
    own: FoundJournal,
    others: Sequence[FoundJournal] = (),
    *,
    strict: bool = False,
    retry_failed: bool = False,
    adopt: bool = False,
) -> JobOutcome | None:
    """The outcome from the journals alone, where they have every sample that is asked; else None.

    others: journals beside the run's own. retry_failed: samples that failed are asked again.
    adopt: one whose run file is broken is taken to be of the job, once the model is loaded.
    Raises JournalError where a journal comes from another configuration, or answers other rows:
    known before a model is loaded; DataError where no row could be asked, and for a bad row if
    strict; ModelError where every sample failed.
    """
    configuration, workload = content.configuration, content.workload
    runs: dict[FoundJournal, RunFile] = {}
    golds: dict[FoundJournal, Golds] = {}
    drawn, errors = Keys(), dict[Key, str | None]()
    failed, rows = dict[str, str | None](), dict[str, str | None]()
    for journal in (journal for journal in (own, *others) if journal.size):
        try:
            recorded = journal.run
        except BrokenRunFile:
            if not adopt or journal is not own:
                raise
            return None
        if recorded is None:
            return None
        found = journal.on_record()
        if not found.finished and not found.failed:
            continue
        try:
            remedy = OTHER if journal is own else BESIDE
            refuse_other_job(journal.path, recorded, content.before_loading(recorded), remedy)
        except JournalError as error:
            if adopt and isinstance(error, BrokenRunFile):
                return None
            if found.drawn:
                raise
            return None  # nothing was drawn: the new configuration starts the journal anew
        content.refuse_changed_rows(journal.path, found.rows)
        runs[journal], golds[journal] = recorded, found.golds
        drawn |= found.drawn
        errors, failed = found.errors | errors, found.failed | failed
        rows |= found.rows
    if not runs:
        return None
    if any(run.fingerprints.get("files") != content.files for run in runs.values()):
        return None  # whether the tokenizer is the same takes loading it
    failed = {name: error for name, error in failed.items() if name not in rows}
    unfit = failed.keys() - {bad.id for bad in workload.bad_rows}
    machine = configuration.extent["machine"]
    if unfit and any(run.extent.get("machine") != machine for run in runs.values()):
        return None  # what did not fit the memory then may fit it now
    if not all(bad.id in failed for bad in workload.bad_rows):
        return None
    asked = [problem for problem in workload.problems if problem.id not in failed]
    counts = _counts(asked, content, list(runs))
    if counts is None:
        return None
    undrawn: list[Key] = []
    for problem, count in zip(asked, counts, strict=True):
        for sample in drawn.missing(problem.id, problem.prompt_hash, range(count)):
            key = Key(problem.id, problem.prompt_hash, sample)
            if key not in errors or retry_failed:
                return None
            undrawn.append(key)
    if undrawn and len(undrawn) == sum(counts):
        raise all_failed(undrawn[0], errors[undrawn[0]])
    for problem in workload.problems if strict else ():
        if problem.id in failed:
            raise DataError(f"problem {problem.id}: {failed[problem.id]} (--strict)")
    if not any(problem.id in rows for problem in workload.problems):
        raise DataError(f"no row can be asked: {next(iter(failed.values()))}")
    for journal in runs:
        runs[journal] = _noted(journal, runs[journal], content, golds[journal])
    run = together(list(runs.values()))
    return JobOutcome(own.path, run, workload, 0, tuple(runs), content.reading)


def _counts(
    problems: Sequence[Problem], content: JobContent, journals: Sequence[FoundJournal]
) -> list[int] | None:
    """How many samples are wanted of each problem; None where its rule wants more of one."""
    sampling = content.configuration.sampling
    if sampling.rule is None:
        return [problem.sampling.samples for problem in problems]
    found = Pool(journals).read_by(content.reading)
    stopped = Stopped.read(sampling.rule, sampling.samples, found)
    decidings = [stopped.deciding((problem.id, problem.prompt_hash)) for problem in problems]
    if not all(deciding.is_decided for deciding in decidings):
        return None
    return [deciding.counted for deciding in decidings]


def _asked_of(run: RunFile, content: JobContent) -> RunFile:
    """The run.json with the names that columns have now."""
    fields = content.configuration.dataset.fields
    dataset = {**(run.extent.get("dataset") or {}), "fields": as_json(fields)}
    return replace(run, extent=run.extent | {"dataset": dataset})


def _noted(journal: FoundJournal, run: RunFile, content: JobContent, golds: Golds) -> RunFile:
    """Let a journal say from now on by which rule its samples count, and how answers are read.

    golds: in the lines of the journal.
    """
    sampling = content.configuration.sampling
    noted = content.reading.noted(_asked_of(run, content), run, golds)
    recorded = noted.extent.get("sampling") or {}
    asked = {"samples": sampling.samples, "stop_when": sampling.stop_when}
    is_same = recorded.get("stop_when") == sampling.stop_when
    if not is_same or (sampling.rule is not None and recorded.get("samples") != sampling.samples):
        noted = replace(noted, extent=noted.extent | {"sampling": recorded | asked})
    if noted != run:
        noted.write(journal.run_file)
    return noted
