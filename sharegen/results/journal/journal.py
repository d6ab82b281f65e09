"""The JSONL journal: append-only, and the only truth about what a job has done.

A killed process loses nothing that it appended (appended.py). A thread calls fsync once a second,
so that a machine that loses power loses at most that second and the decode loop never waits for a
disk; it also looks whether the file is still there. Whatever a crash does leave of a line is at the
end of the file, without its newline; opening the journal truncates it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharegen.common.log import log
from sharegen.errors import JournalError
from sharegen.results.journal.appended import AppendedFile, Changed
from sharegen.results.journal.found_journal import FoundJournal, OnRecord, OwnLines
from sharegen.results.journal.identity import causes, differences
from sharegen.results.journal.record import Record, RecordReader, StrPath, read
from sharegen.results.journal.rereading import Rereading
from sharegen.results.journal.run_file import (
    ADOPT,
    OTHER,
    BrokenRunFile,
    RunFile,
    as_json,
    run_file_path,
    shown,
)

__all__ = ["Journal", "Record", "read"]

_SYNC_SECONDS = 1.0
_RESULTS = ("counts", "timings", "stats")
"""What a run file keeps when its journal goes on. What is sampled into a conversion is nowhere
else, so it is one no longer."""


class Journal:
    """A journal open for appending, by one process at a time.

    path: the JSONL file; run: its run.json (of the earlier run, until `close` updates it).
    on_record: what its lines say, those appended included.
    recovered: bytes of a line cut short that were truncated on opening.
    """

    def __init__(self, file: AppendedFile, run: RunFile, on_record: OnRecord):
        """Hold what is on record of the file."""
        self.path = file.path
        self.run = run
        self.on_record = on_record
        self.recovered = file.size - on_record.end
        self._file = file
        self._unsynced = True  # the lines of a writer that was killed may not be on disk yet
        self._sync_error: OSError | None = None
        self._is_suspect = False  # whether somebody else seems to have changed the file
        # Not an Event: Ctrl-C inside one may leave its lock taken for ever.
        self._closing: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._syncer: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        path: StrPath,
        configuration: Mapping[str, Any],
        *,
        fingerprints: Mapping[str, Any] | None = None,
        extent: Mapping[str, Any] | None = None,
        versions: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        reading: Rereading | None = None,
        overwrite: bool = False,
        adopt: bool = False,
        file: AppendedFile | None = None,
        found: FoundJournal | None = None,
    ) -> Journal:
        """Start the journal at `path` or continue it, and hold it against other writers.

        configuration, fingerprints: what changes the samples, and so must be what the journal
            was started with; extent: what may change; versions, environment: for the record
            (see RunFile). reading: how answers are read from now on, and the gold ones.
        overwrite: drop what an earlier run left. A file that is no journal is never dropped.
        adopt: where no run file says what made the journal, take it to be of this configuration.
        file: the journal's, where the caller holds it already. found: the journal, where the
            caller has looked at it already.

        Raises JournalError when the file cannot be written, is held by another process, comes
        from another configuration (the fields that differ are named) or holds a broken line.
        """
        path = Path(path)
        asked = RunFile(
            configuration=as_json(configuration),
            fingerprints=as_json(fingerprints),
            extent=as_json(extent),
            versions=as_json(versions),
            environment=as_json(environment),
        )
        file = file or AppendedFile.open(path)
        try:
            if overwrite:
                _clear(file)
            found = found or FoundJournal(path, ADOPT)
            recorded = _recorded(found, asked, adopt) if file.size else None
            if recorded is None:  # bad rows of another configuration, if anything
                file.cut(0)
            run = asked
            if recorded is not None:
                run = replace(asked, **{name: getattr(recorded, name) for name in _RESULTS})
                run = replace(run, environment=_begun(recorded.environment) | asked.environment)
            journal = cls(file, run, found.on_record())
            if reading is not None:
                journal.run = reading.noted(run, recorded, journal.on_record.golds)
            journal._start(is_news=journal.run != recorded)
            if reading is not None:
                found.own_lines = OwnLines(file.size, reading.section)
        except BaseException:
            file.close()
            raise
        return journal

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._release()

    def records(self) -> RecordReader:
        """What is on record now, read from the file."""
        return read(self.path)

    def append(self, record: Record) -> None:
        """Write one line; it survives this process from the moment this returns.

        The same bad row, met again by a later run, is not written twice, nor is a sample that fails
        again. Raises JournalError when the line cannot be written whole (disk full): what it left
        is taken back, and the journal is closed with every earlier line in place. Raises Changed
        where somebody else changed the file meanwhile.
        """
        key, known = record.key, self.on_record
        if key in known.errors:
            if not record.is_drawn:
                return
        elif record.is_sample:
            assert key not in known.finished, f"{key} is already on record"
        elif record.problem_id in known.failed:
            return
        try:
            if self._is_suspect:
                self._check()
            if self._sync_error is not None:
                raise self._not_durable()
            self._file.append(record.to_line())
        except OSError as error:
            self._release()
            raise JournalError(
                f"{self.path}: cannot be written: {error.strerror}: nothing written before is lost;"
                " make room and run the same command again to continue"
            ) from error
        except Changed:
            self._write_run_file_again()
            self._release()
            raise
        except BaseException:  # an interrupt inside a write: nothing may follow half a line
            self._release()
            raise
        self._unsynced = True
        known.note(record)

    def begin(self, counts: Mapping[str, Any]) -> None:
        """Let the run.json say, before anything is drawn, how much is asked."""
        counted = self.run.counts | as_json(counts)
        if counted == self.run.counts:
            return
        self.run = replace(self.run, counts=counted)
        try:
            self.run.write(run_file_path(self.path))
        except OSError as error:
            raise self._unwritten(error) from error

    def close(
        self,
        stats: Mapping[str, Any] | None = None,
        *,
        counts: Mapping[str, Any] | None = None,
        timings: Mapping[str, Any] | None = None,
    ) -> None:
        """Make everything durable, record how the run went in the run.json, let others write.

        A section that is not given keeps what the earlier run recorded. Closing twice, or after
        a failed `append`, does nothing.
        """
        if not self._file.is_open:
            return
        known = self.on_record
        own = {"samples": len(known.finished), "bad_rows": len(known.failed)}
        if known.errors:
            own["failed_samples"] = len(known.errors)
        self.run = replace(
            self.run,
            stats=as_json(stats) if stats is not None else self.run.stats,
            timings=as_json(timings) if timings is not None else self.run.timings,
            counts=(as_json(counts) if counts is not None else self.run.counts) | own,
        )
        self._stop_syncing()
        try:
            self._file.sync()
        except OSError as error:
            self._sync_error = error
        try:
            self._check()
            if self._sync_error is not None:  # an earlier one too: fsync tells an error only once
                raise self._not_durable()
            self._unsynced = False
            self.run.write(run_file_path(self.path))
        except Changed:
            self._write_run_file_again()
            raise
        except OSError as error:
            raise JournalError(
                f"{run_file_path(self.path)}: cannot be written: {error.strerror}: {self.path} is"
                " complete; make room and run the same command again"
            ) from error
        finally:
            self._release()

    def _start(self, is_news: bool) -> None:
        """Repair the end of the file, record what this run is, and begin to sync."""
        try:
            if self.recovered:
                self._file.cut(self._file.size - self.recovered)
            if self.on_record.unterminated:
                self._file.append(b"\n")
            if is_news:
                self.run.write(run_file_path(self.path))
        except OSError as error:
            raise self._unwritten(error) from error
        self._syncer = threading.Thread(target=self._sync, name="journal-fsync", daemon=True)
        self._syncer.start()

    def _check(self) -> None:
        self._file.check()
        self._is_suspect = False

    def _write_run_file_again(self) -> None:
        """Make good that somebody removed it: without it the journal would be nobody's."""
        path = run_file_path(self.path)
        with contextlib.suppress(OSError):
            if not path.exists():
                self.run.write(path)
                log(f"{path}: was removed while {self.path} was written: it is there again")

    def _unwritten(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self.path}: cannot be written: {error.strerror}: free some space or choose another"
            " --output"
        )

    def _not_durable(self) -> JournalError:
        assert self._sync_error is not None
        return JournalError(
            f"{self.path}: the disk did not take the last lines: {self._sync_error.strerror}: check"
            " it, then run the same command again to continue"
        )

    def _sync(self) -> None:
        while not self._is_closing(_SYNC_SECONDS):
            try:
                if not self._file.is_there():  # told by the next append, or by close
                    self._is_suspect = True
                    continue
                self._write_run_file_again()
                if not self._unsynced:
                    continue
                self._unsynced = False
                self._file.sync()
            except OSError as error:  # told by the next append, or by close
                self._sync_error = error
                return

    def _is_closing(self, patience: float) -> bool:
        """Whether the thread is to end, within so many seconds."""
        try:
            self._closing.get(timeout=patience)
        except queue.Empty:
            return False
        return True

    def _stop_syncing(self) -> None:
        self._closing.put(None)
        if self._syncer is not None:
            self._syncer.join()

    def _release(self) -> None:
        """Stop the thread, make durable what can be, and close; the lock goes with the file."""
        if not self._file.is_open:
            return
        self._stop_syncing()
        if self._unsynced:
            with contextlib.suppress(OSError):
                self._file.sync()
        self._file.close()


def _begun(environment: Mapping[str, Any]) -> dict[str, Any]:
    """When the first run of a journal began, of what its latest one recorded."""
    date = environment.get("begun", environment.get("date"))
    return {} if date is None else {"begun": date}


def _clear(file: AppendedFile) -> None:
    """Empty a journal for `--overwrite`.

    Before the new run.json is written: an empty journal continues under any configuration, while
    old lines under a new configuration would be a lie.
    """
    path = file.path
    with path.open("rb") as lines:
        first = lines.readline()
    if first and not run_file_path(path).exists():
        try:
            Record.from_line(first)
        except ValueError as error:
            raise JournalError(
                f"{path}: is not a journal, and --overwrite only replaces journals: remove it"
                " yourself, or choose another --output"
            ) from error
    file.cut(0)
    file.sync()


def _recorded(found: FoundJournal, asked: RunFile, adopt: bool) -> RunFile | None:
    """The run.json of a journal that has lines, if what is asked now may go on with them.

    None where it may not but there is nothing to lose: no line is a sample that was drawn.
    """
    path = found.path
    try:
        recorded = found.run
        if recorded is None:
            raise BrokenRunFile(
                f"{path}: exists without {shown(path)}, so what made it is not known: {ADOPT}"
            )
        refuse_other_job(path, recorded, asked)
    except BrokenRunFile as error:
        if not any(record.is_sample for record in found.records()):
            return None
        if not adopt:
            raise
        what = str(error).removesuffix(f": {ADOPT}")
        log(f"{what}: its samples are taken to be of the job as it is asked now (--adopt)")
        return RunFile(asked.configuration, asked.fingerprints)
    except JournalError:
        if any(record.is_drawn for record in found.records()):
            raise
        return None
    return recorded


def refuse_other_job(path: Path, recorded: RunFile, asked: RunFile, remedy: str = OTHER) -> None:
    """Raises JournalError where a journal of `recorded` is not of the job that is asked.

    remedy: what to do about it.
    """
    before, now = recorded.identity, asked.identity
    differ = differences(before, now)
    if differ:
        differ += causes(before, now, recorded.settings, asked.settings)
        said = f"{path}: comes from another configuration: {'; '.join(differ)}"
        if recorded.is_edited:
            to_do = ADOPT if remedy == OTHER else remedy
            raise BrokenRunFile(f"{said} (its run file was edited or damaged): {to_do}")
        raise JournalError(f"{said}: {remedy}")
