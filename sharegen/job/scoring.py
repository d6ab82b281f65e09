"""From a file of samples to verdicts: joins samples, the tests of their dataset, and the scorer.

Like `run.py`, this knows all wings: which dataset a journal was drawn from is in its run.json, and
for samples of other tools it is what the caller names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.common.log import log
from sharegen.common.program_tests import NoTests, ProgramProblem
from sharegen.errors import DataError, UsageError
from sharegen.results.export.formats import Generation, format_of, read_generations
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.pool import Pool
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.completion import completion_of
from sharegen.results.scoring.score import RULES, Score
from sharegen.results.scoring.score_file import ScoreFile, Verdict, hash_of
from sharegen.results.scoring.workers import Sample, Task, score_all
from sharegen.results.stopping.stopped import Stopped
from sharegen.workload.code import schema_named, schema_of_rows
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.dataset import read_rows
from sharegen.workload.items import problem_ids
from sharegen.workload.problem import content_hash
from sharegen.workload.sections import Dataset

_KEPT = 64  # problems whose tests are held at a time
_TASK = 8  # completions of a problem that wait to be handed on together

Scored = Callable[[Score], None]
Planned = Callable[[int, int], None]


@dataclass(frozen=True)
class Samples:
    """A file of samples and what is known of where they come from.

    configuration: of the run that made a journal; None for other files.
    """

    path: Path
    configuration: Configuration | None
    identity: dict[str, Any]

    @property
    def is_chat(self) -> bool:
        return self.configuration is not None and self.configuration.chat.enabled

    @property
    def has_programs(self) -> bool:
        """Whether it is a journal of programs, as far as its configuration says."""
        return self.configuration is not None and self.configuration.dataset.rows is not None

    def generations(self) -> Iterator[Generation]:
        return read_generations(self.path)


def open_samples(path: Path) -> Samples:
    """Raises DataError for a file that holds no samples of any known format."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    run = FoundJournal(path).run if format_of(path) == "sharegen" else None
    if run is None:
        return Samples(path, None, {})
    return Samples(path, Configuration.from_settings(run.settings), run.identity)


class ProblemSet:
    """The problems of a dataset of programs, read row by row when they are asked for.

    Raises DataError or UsageError for a dataset that cannot be read or has no known schema.
    """

    def __init__(self, dataset: Dataset):
        assert dataset.source is not None
        found = read_rows(dataset.source, dataset.config, dataset.split, dataset.revision)
        self.source = dataset.source
        self.fingerprint = found.fingerprint
        self.schema = schema_named(dataset.rows) if dataset.rows else schema_of_rows(found)
        if not any(self.schema.tests <= row.values.keys() for row in found.rows):
            first = found.first
            missing = self.schema.tests - first.values.keys()
            raise DataError(
                f"{first.where}: has no column {min(missing)!r}, where {self.schema.name} has its "
                "tests: give a dataset with tests, or another --schema"
            )
        self._ids = problem_ids(found.rows, dataset)
        self._rows = dict(zip(self._ids, found.rows, strict=True))
        self._read: dict[str, ProgramProblem] = {}
        self._hashes: dict[str, str] = {}
        self._difficulties: dict[str, str | None] = {}

    def id_of(self, problem_id: str | int) -> str:
        """The id of a problem given by id or index. Raises DataError if it is not here."""
        if isinstance(problem_id, int):
            if problem_id < len(self._ids):
                return self._ids[problem_id]
        elif problem_id in self._rows:
            return problem_id
        raise DataError(
            f"problem {problem_id!r} is not in {self.source}: these are samples of another "
            "dataset, which --dataset has to name"
        )

    def tests_hash(self, problem_id: str) -> str | None:
        """The hash of a problem's tests as they are now; None for a problem that is not here."""
        if problem_id not in self._hashes and problem_id in self._rows:
            values = self._rows[problem_id].values
            self._hashes[problem_id] = content_hash(self.schema.tests_of(values))
        return self._hashes.get(problem_id)

    def difficulty(self, problem_id: str) -> str | None:
        """The difficulty of a problem; all difficulties stay in memory, unlike tests."""
        if problem_id not in self._difficulties:
            self._difficulties[problem_id] = self.problem(problem_id).difficulty
        return self._difficulties[problem_id]

    def problem(self, problem_id: str) -> ProgramProblem:
        """How to judge its programs; the last few are kept, since tests can be large."""
        if problem_id not in self._read:
            if len(self._read) == _KEPT:
                del self._read[next(iter(self._read))]
            row = self._rows[problem_id]
            self._read[problem_id] = (
                self.schema.problem(row.values)
                if row.fault is None
                else ProgramProblem(NoTests(f"it {row.fault}"))
            )
        return self._read[problem_id]


def dataset_of(
    samples: Samples, dataset: str | None, schema: str | None, split: str | None
) -> Dataset:
    """Where the tests are: as the caller says, else as the journal's run.json does.

    Raises UsageError where neither says it.
    """
    if dataset is not None:
        # The recipe's presets know the datasets; the model plays no part.
        flags: dict[str, Any] = {"model": "none", "few_shot": {"k": 0}}
        if split is not None:
            flags["dataset"] = {"split": split}
        return resolve("code-sample", dataset, flags, schema).dataset
    if samples.configuration is None:
        raise UsageError(
            f"{samples.path}: where its tests are is not known: give --dataset "
            "(apps, humaneval, mbpp, livecodebench, a file or a hub id)"
        )
    recorded = samples.configuration.dataset
    changes = {"rows": schema or recorded.rows, "split": split or recorded.split}
    return recorded.model_copy(update=changes)


def score_programs(
    samples: Samples,
    dataset: Dataset,
    isolate: Callable[[], Isolation],
    limits: Limits,
    workers: int,
    *,
    overwrite: bool = False,
    planned: Planned | None = None,
    scored: Scored | None = None,
) -> list[Verdict]:
    """Run every program that has no verdict yet; returns the verdicts on all of the file's.

    isolate: asked only when something has to run; it may refuse by raising.
    planned: told how many programs there are and how many have a verdict; scored: each new score.
    Everything is checked before anything runs. Raises DataError, JournalError and SandboxError.
    """
    problems = ProblemSet(dataset)
    marks = {
        (name, generation.sample): VerdictKey(hash_of(generation.text), problems.tests_hash(name))
        for name, generation in _of_dataset(samples, problems)
    }
    if not marks:
        raise DataError(f"{samples.path}: holds no samples")
    with ScoreFile(samples.path, settings_of(samples, problems, limits), overwrite) as file:
        done = {key for key, mark in marks.items() if mark.verdict(file, key) is not None}
        _name_changed(samples, sum(key in file.verdicts for key in marks.keys() - done))
        if planned is not None:
            planned(len(marks), len(done))
        if len(done) < len(marks):
            tasks = _tasks(samples, problems, done)
            with contextlib.closing(score_all(tasks, isolate(), limits, workers)) as scores:
                for key, score in scores:
                    keep(file, problems, key, marks[key], score)
                    if scored is not None:
                        scored(score)
        verdicts = [mark.verdict(file, key) for key, mark in marks.items()]
    known = [verdict for verdict in verdicts if verdict is not None]
    assert len(known) == len(marks)
    _name_unscorable(known, problems)
    return known


@dataclass(frozen=True)
class VerdictKey:
    """What a verdict stands for: hashes of a sample's text and of its problem's tests."""

    completion: str
    tests: str | None

    def verdict(self, file: ScoreFile, key: Sample) -> Verdict | None:
        return file.standing(*key, self.completion, self.tests)


def settings_of(samples: Samples, problems: ProblemSet, limits: Limits) -> dict[str, Any]:
    """What verdicts depend on besides: those of other settings are never mixed with them."""
    return {
        "schema": problems.schema.name,
        "chat": samples.is_chat,
        "timeout": limits.cpu_seconds,
        "memory": limits.memory,
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "rules": RULES,
    }


def keep(
    file: ScoreFile, problems: ProblemSet, key: Sample, mark: VerdictKey, score: Score
) -> None:
    """Write a verdict, with the problem's difficulty and what it stands for."""
    file.append(*key, score, problems.difficulty(key[0]), mark.completion, mark.tests)


def _name_changed(samples: Samples, number: int) -> None:
    if number:
        what = "sample is another one" if number == 1 else "samples are other ones"
        log(
            f"{samples.path}: {number:,} {what} than when it was scored, or the tests are: "
            "judged anew"
        )


def _of_dataset(samples: Samples, problems: ProblemSet) -> Iterator[tuple[str, Generation]]:
    """The samples of the dataset's problems, each behind its problem's id.

    Others are logged and left out. Raises DataError where there are no samples but others.
    """
    faults: dict[str | int, str] = {}
    number = 0
    for generation in samples.generations():
        try:
            name = problems.id_of(generation.problem_id)
        except DataError as error:
            faults[generation.problem_id] = f"{samples.path}: {error}"
        else:
            number += 1
            yield name, generation
    if faults and not number:
        raise DataError(next(iter(faults.values())))
    for fault in faults.values():
        log(f"{fault}; it is left out")


def _name_unscorable(verdicts: Iterable[Verdict], problems: ProblemSet) -> None:
    """Log each problem that no program can be judged by, and why."""
    counts = Counter(v.problem_id for v in verdicts if v.result == "unscorable")
    for problem_id, number in counts.items():
        tests = problems.problem(problem_id).tests
        reason = tests.reason if isinstance(tests, NoTests) else "its tests cannot be run"
        log(f"problem {problem_id}: {number:,} unscorable: {reason}")


def pooled_verdicts(
    found: Pool, verdicts: Mapping[Path, Sequence[Verdict]], stopped: Stopped | None = None
) -> list[Verdict]:
    """The verdicts of several journals as those of one: every sample once, as it is known there.

    stopped: of samples that a rule stopped those that count.
    """
    if len(found.files) == 1 and stopped is None:
        return list(verdicts[found.files[0]])
    known = {
        (path, verdict.problem_id, verdict.sample): verdict
        for path, of_file in verdicts.items()
        for verdict in of_file
    }
    return [
        dataclasses.replace(verdict, problem_id=entry.record.problem_id)
        for entry in found.entries()
        if not entry.repeats
        and (stopped is None or stopped.counts(entry.record))
        and (verdict := known.get((entry.path, entry.key.problem_id, entry.key.sample or 0)))
    ]


def _tasks(samples: Samples, problems: ProblemSet, done: set[Sample]) -> Iterator[Task]:
    """What is left to do, a few programs of one problem at a time."""
    waiting: dict[tuple[str, bool], list[tuple[int, str]]] = defaultdict(list)

    def task(key: tuple[str, bool]) -> Task:
        problem_id, is_program = key
        problem = problems.problem(problem_id)
        if is_program:
            problem = dataclasses.replace(problem, stub="")
        texts = [
            (sample, completion_of(text, samples.is_chat, problem))
            for sample, text in waiting.pop(key)
        ]
        return Task(problem_id, problem, texts)

    for problem_id, generation in _of_dataset(samples, problems):
        if (problem_id, generation.sample) in done:
            continue
        key = (problem_id, generation.is_program)
        waiting[key].append((generation.sample, generation.text))
        if len(waiting[key]) == _TASK:
            yield task(key)
    for key in list(waiting):
        yield task(key)
