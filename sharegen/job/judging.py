"""The programs of a job run beside its sampling: `--stop-when right=K --execute`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from sharegen.common.cores import available_cores
from sharegen.errors import UsageError
from sharegen.job.scoring import (
    ProblemSet,
    Samples,
    VerdictKey,
    dataset_of,
    keep,
    open_samples,
    score_programs,
    settings_of,
)
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.completion import completion_of
from sharegen.results.scoring.score_file import ScoreFile, hash_of
from sharegen.results.scoring.workers import Crew, Task
from sharegen.workload.configuration import Configuration


def check_execution(configuration: Configuration, isolation: Isolation | None) -> None:
    """Refuse programs that nobody allowed to run, and leave that nothing is made of.

    isolation: in which they may run. Raises UsageError.
    """
    rule = configuration.sampling.rule
    by_tests = rule is not None and not rule.votes and configuration.dataset.rows is not None
    if by_tests and isolation is None:
        raise UsageError(
            f"--stop-when {rule}: which programs are right takes running them: add --execute to "
            "run them in a sandbox"
        )
    if isolation is not None and not by_tests:
        raise UsageError(
            "--execute runs programs for --stop-when right=K: add that, or judge the finished "
            "journal with `sharegen score JOURNAL --execute`"
        )


class Judge:
    """Verdicts on the samples of one journal, as they come; they go to its score file.

    samples: the journal, which may be empty yet.
    Close it: what runs then ends, and is run again by the next one.
    """

    def __init__(self, samples: Samples, isolation: Isolation) -> None:
        limits = Limits()
        self._samples = samples
        self._problems = ProblemSet(dataset_of(samples, None, None, None))
        self._running: dict[tuple[str, int], Record] = {}
        self._crew = Crew(isolation, limits, available_cores())
        settings = settings_of(samples, self._problems, limits)
        self._file = ScoreFile(samples.path, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._crew.close()
        self._file.__exit__(*exception)

    def put(self, record: Record) -> None:
        """A program to be judged."""
        assert record.sample is not None
        problem = self._problems.problem(record.problem_id)
        text = completion_of(record.completion, self._samples.is_chat, problem)
        self._running[record.problem_id, record.sample] = record
        self._crew.put(Task(record.problem_id, problem, [(record.sample, text)]))

    def take(self, wait: bool = False) -> Iterator[tuple[Record, bool]]:
        """Programs that were judged since, and whether they are right; wait: all that there are."""
        while self._crew.is_busy:
            for (problem_id, sample), score in self._crew.take(None if wait else 0.0):
                record = self._running.pop((problem_id, sample))
                tests = self._problems.tests_hash(problem_id)
                mark = VerdictKey(hash_of(record.completion), tests)
                keep(self._file, self._problems, (problem_id, sample), mark, score)
                yield record, score.passed
            if not wait:
                return


@contextmanager
def judging(
    journals: Sequence[FoundJournal],
    run: RunFile,
    isolation: Isolation | None,
) -> Iterator[Judge | None]:
    """What judges the programs of a run into the first of its journals, if anything does.

    run: of that one. What earlier runs left without a verdict is judged first.
    """
    if isolation is None:
        yield None
        return
    for journal in journals:
        if any(record.is_drawn for record in journal.records()):
            samples = open_samples(journal.path)
            dataset = dataset_of(samples, None, None, None)
            score_programs(samples, dataset, lambda: isolation, Limits(), available_cores())
    samples = Samples(journals[0].path, Configuration.from_settings(run.settings), run.identity)
    with Judge(samples, isolation) as judge:
        yield judge
