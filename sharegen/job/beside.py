"""Journals beside a run's own that may hold samples of the same problems: a sample is drawn once.

A run of the whole job takes what the shards have, a shard what a run of all or a cut into another
number of shards had; shards of one cut have no problem in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sharegen.errors import JournalError
from sharegen.job.identity import Content
from sharegen.job.share import Share
from sharegen.results.family import family, shard_named, whole_path
from sharegen.results.journal import BESIDE, OTHER, note_row, note_text, refuse_other_job
from sharegen.results.keys import Key
from sharegen.results.lock import refuse_held
from sharegen.results.record import read
from sharegen.results.run_file import RunFile, run_file_path


def journals_beside(path: Path, share: Share | None) -> list[Path]:
    """The other journals that may hold samples of what a run into `path` asks.

    Raises JournalError for one that another process writes: both would draw the same.
    """
    found = []
    for other in family(whole_path(path)):
        if other == path or not other.exists():
            continue
        if share is not None and shard_named(other) is not None:
            run = RunFile.read(run_file_path(other), OTHER)
            if run is None or _is_of_cut(run, share):
                continue
        refuse_held(other)
        if other.stat().st_size:
            found.append(other)
    return found


def refuse_other_shards(path: Path, share: Share | None, content: Content) -> None:
    """Raises JournalError where a shard of the same cut, with samples, is of another job."""
    if share is None:
        return
    for other in family(whole_path(path)):
        if other == path or shard_named(other) is None or not other.exists():
            continue
        run = RunFile.read(run_file_path(other), OTHER)
        if run is None or not _is_of_cut(run, share):
            continue
        try:
            refuse_other_job(other, run, content.before_loading(run), BESIDE)
        except JournalError:
            if any(record.is_drawn for record in read(other)):
                raise


def refuse_overwriting(path: Path, others: Sequence[Path]) -> None:
    """Raises JournalError where `--overwrite` would leave samples that count as this run's."""
    if others:
        raise JournalError(
            f"{others[0]}: has samples of the same job, which --overwrite of {path} would leave: "
            "remove it with its run.json, or choose another --output"
        )


def finished_beside(
    journals: Sequence[Path], content: Content, asked: RunFile, retry_failed: bool
) -> Iterator[Key]:
    """The samples on record there; those that failed count unless they are to be drawn again.

    asked: the identity of what is being run. Raises JournalError for a journal of another job, and
    where a row has changed since it was sampled.
    """
    for path in journals:
        recorded = RunFile.read(run_file_path(path), OTHER)
        if recorded is None:
            raise JournalError(f"{path}: exists without its run.json: move it away")
        try:
            refuse_other_job(path, recorded, asked, BESIDE)
        except JournalError:
            if any(record.is_drawn for record in read(path)):
                raise
            continue
        rows: dict[str, str | None] = {}
        texts: dict[str, str] = {}
        for record in read(path):
            if record.is_sample:
                note_row(rows, record)
                note_text(texts, record)
            if record.is_drawn or (record.is_sample and not retry_failed):
                yield record.key
        content.refuse_changed_rows(path, rows)
        content.refuse_changed_texts(path, texts)


def _is_of_cut(run: RunFile, share: Share) -> bool:
    recorded = run.extent.get("shard")
    mine = share.extent["shard"]
    return isinstance(recorded, dict) and all(
        recorded.get(name) == mine[name] for name in ("count", "cut")
    )
