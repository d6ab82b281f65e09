"""FILE.jsonl.scores.jsonl: a line a verdict, appended as programs finish, and continued.

A verdict stands for the text and the tests that it was reached on, and its line has a hash of both.
Where the file of samples holds another text, or the dataset other tests, it says nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.common import json_values
from sharegen.errors import JournalError, UsageError
from sharegen.results.journal.appended import AppendedFile
from sharegen.results.journal.identity import differences
from sharegen.results.journal.places import hidden, make_folder
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile, as_json

if TYPE_CHECKING:
    from sharegen.results.scoring.score import Score


@dataclass(frozen=True)
class Verdict:
    """One line of the file, as far as pass@k needs it.

    completion: a hash of the text that it is about (`hash_of`); tests: of the tests that decided.
    """

    problem_id: str
    sample: int
    passed: bool
    result: str
    difficulty: str | None = None
    completion: str | None = None
    tests: str | None = None


def hash_of(completion: str) -> str:
    """What a line says of the text that it is about."""
    return hashlib.sha256(completion.encode(errors="surrogatepass")).hexdigest()[:16]


def scores_path(samples: Path) -> Path:
    """Turn `runs/a.jsonl` into `runs/.sharegen/a.jsonl.scores.jsonl`."""
    return hidden(samples.parent / (samples.name + ".scores.jsonl"))


def _is_journal(path: Path) -> bool:
    """Whether its first line is a sample's, and no verdict's."""
    try:
        with path.open("rb") as file:
            Record.from_line(file.readline())
    except (OSError, ValueError):
        return False
    return True


def _settings_path(samples: Path) -> Path:
    return hidden(samples.parent / (samples.name + ".scores.run.json"))


def discard_scores(samples: Path) -> None:
    """Remove what is kept of a file of samples that is started anew. Raises JournalError."""
    path = scores_path(samples)
    try:
        for file in (path, _settings_path(samples)):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(f"{path}: cannot be removed: {error.strerror}") from error


class ScoreFile:
    """The scores of one file of samples, open for appending by one process at a time.

    verdicts: by problem id and sample, the last on record.
    Raises JournalError when it is held, cannot be written, holds a broken line, or was made with
    other settings.
    """

    def __init__(self, samples: Path, settings: Mapping[str, Any], overwrite: bool = False):
        namesake = samples.parent / (samples.name + ".scores.jsonl")
        if _is_journal(namesake):
            raise UsageError(
                f"{namesake} is a journal, and its run file has the name of what is kept of the "
                f"scores of {samples}: rename it"
            )
        self._samples = samples
        self.path = scores_path(samples)
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        self._known: dict[tuple[str, int, str | None, str | None], Verdict] = {}
        try:
            make_folder(self.path)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._file = AppendedFile.open(self.path, follow=False)
        try:
            if overwrite:
                self._file.cut(0)
            self._read()
            self._compare(settings)
        except OSError as error:
            self._file.close()
            raise JournalError(f"{self.path}: cannot be written: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ScoreFile:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            with contextlib.suppress(OSError):
                self._file.sync()
            if exception[0] is None:
                self._file.check()
        finally:
            self._file.close()

    def append(
        self,
        problem_id: str,
        sample: int,
        score: Score,
        difficulty: str | None,
        completion: str | None = None,
        tests: str | None = None,
    ) -> None:
        """Write one line at once.

        Raises JournalError when it cannot be written whole, and where somebody else changed the
        file meanwhile.
        """
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
        fields |= {"completion": completion, "tests": tests}
        line = json.dumps(fields).encode() + b"\n"
        try:
            self._file.append(line)
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot be written: {error.strerror}: nothing written before is "
                "lost; make room and run the same command again"
            ) from error
        self._note(fields)

    def standing(
        self, problem_id: str, sample: int, completion: str, tests: str | None
    ) -> Verdict | None:
        """The verdict on this text by these tests (hashes of both), if it is on record."""
        return self._known.get((problem_id, sample, completion, tests))

    def _note(self, fields: Mapping[str, Any]) -> None:
        verdict = Verdict(
            fields["problem_id"],
            fields["sample"],
            fields["passed"],
            fields["result"],
            fields.get("difficulty"),
            fields.get("completion"),
            fields.get("tests"),
        )
        key = (verdict.problem_id, verdict.sample)
        self.verdicts[key] = verdict
        self._known[*key, verdict.completion, verdict.tests] = verdict

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
        self._file.cut(end)

    def _compare(self, settings: Mapping[str, Any]) -> None:
        """Refuse to mix verdicts that were reached under different settings."""
        path = _settings_path(self._samples)
        asked = RunFile(configuration=as_json(settings))
        recorded = RunFile.read(path, "start again with --overwrite") if self.verdicts else None
        differ = differences((recorded or asked).configuration, asked.configuration)
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
    for name in ("difficulty", "completion", "tests"):
        if not isinstance(fields.get(name), str | None):
            raise ValueError(f"has no valid `{name}`")
    return fields


_TYPES: dict[str, type] = {"problem_id": str, "sample": int, "passed": bool, "result": str}
