"""The `NAME.run.json` of a journal: what made it, and how it went.

`configuration` and `fingerprints` are the journal's identity: whatever changes the samples. A
journal is only continued under the same identity. `extent` is what may change from one run to
the next: where model and rows lie, how many are asked, how fast the journal grows.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sharegen.common import json_values
from sharegen.common.files import replace_file
from sharegen.common.json_values import JsonError
from sharegen.common.log import log
from sharegen.common.mappings import merge
from sharegen.errors import JournalError
from sharegen.results.journal.identity import identity_of
from sharegen.results.journal.places import hidden, make_folder
from sharegen.results.journal.run_sections import faults_in

REPAIR = "repair it or move it away, or give the command of its run again with --adopt"
"""What to do about a run file that is broken."""

OTHER = "choose another --output, or start again with --overwrite"
"""What to do about a journal that this run cannot continue."""

ADOPT = (
    "give --adopt to go on with its samples as this job's, choose another --output, or start again"
    " with --overwrite"
)
"""What to do about a journal of which no run file says what made it."""

BESIDE = "rename or remove it, with its run.json, or choose another --output"
"""What to do about another journal of the same name's shards."""


class BrokenRunFile(JournalError):
    """A run.json of which nothing can be made."""


@dataclass(frozen=True)
class RunFile:
    """The content of a run.json; every section is a plain JSON object.

    configuration: the resolved settings that change the samples (prompts, dtype, sampling, stops,
        max tokens, seed).
    fingerprints: of model, tokenizer and examples, whatever their names; for information also of
        the `dataset` and of the model's other `files`.
    extent: settings that may change (model, dataset, samples, limit, answer, memory, batch).
    answers: how answers are read since the latest run: the `hash` of the recipe's section, and the
        `golds` by problem id that are others than the journal's lines have; `stale`, where there
        are problems that no run has asked since gold answers were looked for elsewhere.
    versions: of Python and the packages of the latest run; environment: its `date`, `host`,
        `device` and `command`, and when the first run had `begun`, where it is a later one;
        counts, timings, stats: its results.
    is_edited: whether the file was changed since it was written, by a hand or a disk.
    conversion: only beside a copy that `sharegen convert` made: the `journal` that holds all of it.
    """

    configuration: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    extent: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    conversion: dict[str, Any] = field(default_factory=dict)

    is_edited: bool = field(default=False, compare=False)

    @property
    def identity(self) -> dict[str, Any]:
        """What two journals of one job have in common (see identity.py)."""
        return identity_of(self.configuration | {"fingerprints": self.fingerprints})

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration and extent merged, section by section: the job as it was last run."""
        return merge(self.configuration, self.extent)

    def write(self, path: Path) -> None:
        """Replace the file in one step: a reader sees the old one or the new one, whole."""
        sections = as_json({name: getattr(self, name) for name in _SECTIONS})
        text = json.dumps(sections | {"digest": _digest(sections)}, indent=2) + "\n"
        make_folder(path)
        replace_file(path, text.encode())

    @classmethod
    def read(cls, path: Path, to_do: str = REPAIR) -> RunFile | None:
        """The file at `path`, None if there is none; BrokenRunFile if nothing can be made of it.

        If it was edited or damaged after it was written, its results are left out with a warning:
        they are for information only. to_do: what the error advises.
        """
        try:
            sections = json_values.parse(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise BrokenRunFile(f"{path}: cannot be read: {error.strerror}: {to_do}") from error
        except JsonError as error:
            raise BrokenRunFile(f"{path}: is not JSON: {to_do}") from error
        if not isinstance(sections, dict):
            raise BrokenRunFile(f"{path}: is not a JSON object: {to_do}")
        if "configuration" not in sections:
            raise BrokenRunFile(f"{path}: has no `configuration`: {to_do}")
        digest = sections.pop("digest", None)
        known = {name: sections[name] for name in _SECTIONS if name in sections}
        if digest == _digest(sections):
            return cls(**known)
        fault = next(faults_in(known), None)
        if fault is not None and fault.partition("`")[0].partition(".")[0] not in _RESULTS:
            raise BrokenRunFile(f"{path}: `{fault}: {to_do}")
        is_edited = digest is not None
        if is_edited or fault is not None:
            log(
                f"{path}: was edited or damaged since it was written: what it says of counts and "
                "timings is left out"
            )
            known = {name: value for name, value in known.items() if name not in _RESULTS}
        return cls(**known, is_edited=is_edited)


_SECTIONS = tuple(f.name for f in fields(RunFile) if f.name != "is_edited")
_RESULTS = ("counts", "timings", "stats")


def _digest(sections: Mapping[str, Any]) -> str:
    """What tells a file that was written from one that was edited or damaged afterwards."""
    return hashlib.blake2b(json.dumps(sections, sort_keys=True).encode(), digest_size=8).hexdigest()


def run_file_path(journal: str | os.PathLike[str]) -> Path:
    """Turn `runs/a.jsonl` into `runs/.sharegen/a.run.json`."""
    path = Path(journal)
    return hidden(path.parent / (path.name.removesuffix(".jsonl") + ".run.json"))


def shown(journal: str | os.PathLike[str]) -> str:
    """The run.json as a message names it, seen from the journal."""
    return str(run_file_path(journal).relative_to(Path(journal).parent))


def as_json(section: Mapping[str, Any] | None) -> dict[str, Any]:
    """The section as reading it back will give it (tuples become lists, paths strings)."""
    return json.loads(json.dumps(dict(section or {}), default=str))
