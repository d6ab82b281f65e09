"""FILE.jsonl.scores.jsonl: a line a verdict, appended as programs finish, and continued."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.common import json_values
from sharegen.errors import JournalError, UsageError
from sharegen.results.identity import differences, identity_of
from sharegen.results.lock import hold, let_go
from sharegen.results.places import hidden, make_folder
from sharegen.results.record import Record
from sharegen.results.run_file import RunFile, as_json
from sharegen.results.score import Score


@dataclass(frozen=True)
class Verdict:
    """One line of the file, as far as pass@k needs it.

    tests: a hash of the tests that decided it. Score files of early versions have none.
    """

    problem_id: str
    sample: int
    passed: bool
    result: str
    difficulty: str | None = None
    tests: str | None = None


def scores_path(samples: Path) -> Path:
    """`runs/a.jsonl` -> `runs/.sharegen/a.jsonl.scores.jsonl`."""
    return hidden(samples.with_name(samples.name + ".scores.jsonl"))


def _is_journal(path: Path) -> bool:
    """Whether its first line is a sample's, and no verdict's."""
    try:
        with path.open("rb") as file:
            Record.from_line(file.readline())
    except (OSError, ValueError):
        return False
    return True


def _settings_path(samples: Path) -> Path:
    return hidden(samples.with_name(samples.name + ".scores.run.json"))


class ScoreFile:
    """The scores of one file of samples, open for appending by one process at a time.

    verdicts: by problem id and sample, what is on record.
    Raises JournalError when it is held, cannot be written, holds a broken line, or was made with
    other settings.
    """

    def __init__(self, samples: Path, settings: Mapping[str, Any], overwrite: bool = False):
        namesake = samples.with_name(samples.name + ".scores.jsonl")
        if _is_journal(namesake):
            raise UsageError(
                f"{namesake} is a journal, and its run file has the name of what is kept of the "
                f"scores of {samples}: rename it"
            )
        self._samples = samples
        self.path = scores_path(samples)
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        try:
            make_folder(self.path)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._lock = None
        try:
            self._lock = hold(self.path, self._descriptor)
            if overwrite:
                os.ftruncate(self._descriptor, 0)
            self._read()
            self._compare(settings)
        except OSError as error:
            let_go(self._descriptor, self._lock)
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        except BaseException:
            let_go(self._descriptor, self._lock)
            raise

    def __enter__(self) -> ScoreFile:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
        let_go(self._descriptor, self._lock)

    def append(
        self,
        problem_id: str,
        sample: int,
        score: Score,
        difficulty: str | None,
        tests: str | None = None,
    ) -> None:
        """Write one line at once. Raises JournalError when it cannot be written whole."""
        fields = {
            "problem_id": problem_id,
            "sample": sample,
            "passed": score.passed,
            "result": score.result,
            "tests_passed": score.tests_passed,
            "seconds": round(score.seconds, 4),
        }
        if score.tests_total is not None:
            fields["tests_total"] = score.tests_total
        if score.message is not None:
            fields["message"] = score.message
        if difficulty is not None:
            fields["difficulty"] = difficulty
        if tests is not None:
            fields["tests"] = tests
        line = json.dumps(fields).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot be written: {error.strerror}: nothing written before is "
                "lost; make room and run the same command again"
            ) from error
        self._note(fields)

    def refuse_changed(self, hash_of: Callable[[str], str | None]) -> None:
        """Raises JournalError where a problem's tests are not those that its programs ran against.

        hash_of: of the tests that a problem has now; None of one that is no longer asked.
        """
        decided = {v.problem_id: v.tests for v in self.verdicts.values() if v.tests is not None}
        for problem_id, tests in decided.items():
            if hash_of(problem_id) not in (None, tests):
                raise JournalError(
                    f"{self.path}: problem {problem_id!r}: its tests changed since it was scored:"
                    " put them back, or start again with --overwrite"
                )

    def _note(self, fields: Mapping[str, Any]) -> None:
        verdict = Verdict(
            fields["problem_id"],
            fields["sample"],
            fields["passed"],
            fields["result"],
            fields.get("difficulty"),
            fields.get("tests"),
        )
        self.verdicts.setdefault((verdict.problem_id, verdict.sample), verdict)

    def _read(self) -> None:
        """What is on record; a last line that was cut short is dropped from the file."""
        end = 0
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    fields = _fields_of(line)
                except ValueError:
                    if line.endswith(b"\n"):
                        raise JournalError(
                            f"{self.path}, line {number}: is not a score: remove the line, or "
                            "start again with --overwrite"
                        ) from None
                    break
                if not line.endswith(b"\n"):
                    break
                self._note(fields)
                end += len(line)
        os.ftruncate(self._descriptor, end)

    def _compare(self, settings: Mapping[str, Any]) -> None:
        """Refuse to mix verdicts that were reached under different settings."""
        path = _settings_path(self._samples)
        asked = RunFile(configuration=as_json(settings))
        recorded = RunFile.read(path, "start again with --overwrite") if self.verdicts else None
        before, now = _settings(recorded or asked), _settings(asked)
        if all(verdict.tests is not None for verdict in self.verdicts.values()):
            before["dataset"] = now.get("dataset")  # rows may come and go: see `refuse_changed`
        differ = differences(before, now)
        if differ:
            raise JournalError(
                f"{self.path}: was made with other settings: {'; '.join(differ)}: give the same "
                "ones, or start again with --overwrite"
            )
        asked.write(path)


def _fields_of(line: bytes) -> dict[str, Any]:
    fields = json_values.parse(line)
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object")
    for name, kind in _TYPES.items():
        if type(fields.get(name)) is not kind:
            raise ValueError(f"has no valid `{name}`")
    for name in ("difficulty", "tests"):
        if not isinstance(fields.get(name), str | None):
            raise ValueError(f"has no valid `{name}`")
    return fields


def _settings(run: RunFile) -> dict[str, Any]:
    """What verdicts hang on; of the samples, what makes them those of one job."""
    samples = run.configuration.get("samples") or {}
    return run.configuration | {"samples": identity_of(samples)}


_TYPES: dict[str, type] = {"problem_id": str, "sample": int, "passed": bool, "result": str}
