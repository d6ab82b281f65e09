"""The `NAME.run.json` of a journal: what made it, and how it went.

`configuration` and `fingerprints` are the journal's identity: whatever changes the samples. A
journal is only continued under the same identity. `extent` is what may change from one run to
the next: where model and rows lie, how many are asked, how fast the journal grows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sharegen.common.files import replace_file
from sharegen.errors import JournalError
from sharegen.results.identity import identity_of
from sharegen.results.places import hidden, make_folder


@dataclass(frozen=True)
class RunFile:
    """The content of a run.json; every section is a plain JSON object.

    configuration: the resolved settings that change the samples (prompts, dtype, sampling, stops,
        max tokens, seed).
    fingerprints: of model, tokenizer and examples, whatever their names; for information also of
        the `dataset` and of the model's other `files`.
    extent: settings that may change (model, dataset, samples, limit, answer, memory, batch).
    answers: how answers are read since the latest run: the `hash` of the recipe's section, and the
        `golds` by problem id that are others than the journal's lines have.
    versions: of Python and the packages of the latest run; environment: its `date`, `host`,
        `device` and `command`, and when the first run had `begun`, where it is a later one;
        counts, timings, stats: its results.
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

    @property
    def identity(self) -> dict[str, Any]:
        """What two journals of one job have in common (see identity.py)."""
        return identity_of(self.configuration | {"fingerprints": self.fingerprints})

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration and extent merged, section by section: the job as it was last run."""
        return _merge(self.configuration, self.extent)

    def write(self, path: Path) -> None:
        """Replace the file in one step: a reader sees the old one or the new one, whole."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=True, default=str) + "\n"
        make_folder(path)
        replace_file(path, text.encode())

    @classmethod
    def read(cls, path: Path, to_do: str = "repair it or move it away") -> RunFile | None:
        """The file at `path`, None if there is none; JournalError if it is broken.

        to_do: what the error advises.
        """
        try:
            sections = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise JournalError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise JournalError(f"{path}: is not JSON: {to_do}") from error
        if not isinstance(sections, dict):
            raise JournalError(f"{path}: is not a JSON object: {to_do}")
        known = {f.name: sections[f.name] for f in fields(cls) if f.name in sections}
        for name, value in known.items():
            if not isinstance(value, dict):
                raise JournalError(f"{path}: `{name}` is not a JSON object: {to_do}")
        if "configuration" not in known:
            raise JournalError(f"{path}: has no `configuration`: {to_do}")
        return cls(**known)


def run_file_path(journal: str | os.PathLike[str]) -> Path:
    """`runs/a.jsonl` -> `runs/.sharegen/a.run.json`."""
    path = Path(journal)
    return hidden(path.with_name(path.name.removesuffix(".jsonl") + ".run.json"))


def shown(journal: str | os.PathLike[str]) -> str:
    """The run.json as a message names it, seen from the journal."""
    return str(run_file_path(journal).relative_to(Path(journal).parent))


def as_json(section: Mapping[str, Any] | None) -> dict[str, Any]:
    """The section as reading it back will give it (tuples become lists, paths strings)."""
    return json.loads(json.dumps(dict(section or {}), default=str))


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[name] = _merge(below, value) if nested else value  # type: ignore[arg-type]
    return merged
