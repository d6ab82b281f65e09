"""Which job this is, by the content of what it is made from.

The model and the tokenizer as they were loaded say it in full. Before they are, the files of the
model's folder say as much as it takes to find the job's journal, and to tell a finished one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sharegen.engine.model.checkpoint.folder import refuse_path
from sharegen.engine.model.fingerprint import fingerprint_of_others, fingerprint_of_place
from sharegen.errors import JournalError
from sharegen.results.journal.rereading import Rereading
from sharegen.results.journal.run_file import OTHER, RunFile, as_json
from sharegen.workload.clock import like
from sharegen.workload.configuration import Configuration
from sharegen.workload.problem import Problem, Workload
from sharegen.workload.prompt import tokenizer_fingerprint

if TYPE_CHECKING:
    from sharegen.engine.model.loaded import LoadedModel
    from sharegen.engine.parallel.outline import ModelOutline


@dataclass(frozen=True)
class JobContent:
    """What a job asks, and what is known of its model before that is loaded.

    weights: what `LoadedModel.fingerprint` will be; files: a fingerprint of what else lies in the
        model's folder. None for a model from the hub.
    """

    configuration: Configuration
    workload: Workload
    weights: str | None
    files: str | None

    @classmethod
    def of(cls, configuration: Configuration, workload: Workload) -> JobContent:
        names = (configuration.model, configuration.adapter)
        places = [Path(name).expanduser() for name in names if name is not None]
        if places and not places[0].exists():
            refuse_path(str(names[0]))
        if not all(place.exists() for place in places):
            return cls(configuration, workload, None, None)
        weights = "+".join(fingerprint_of_place(place) for place in places)
        return cls(configuration, workload, weights, fingerprint_of_others(places[0]))

    def fingerprints(self, model: LoadedModel | ModelOutline, tokenizer: Any) -> dict[str, str]:
        """All of them, as the journal keeps them."""
        found = {"model": model.fingerprint, "tokenizer": tokenizer_fingerprint(tokenizer)}
        return found | self.workload.fingerprints | ({"files": self.files} if self.files else {})

    @property
    def reading(self) -> Rereading:
        """How the recipe reads answers, and the gold answers that it finds now."""
        golds = {problem.id: problem.gold for problem in self.workload.problems}
        return Rereading(
            as_json(self.configuration.model_dump(include={"answer"}))["answer"], golds
        )

    def before_loading(self, recorded: RunFile) -> RunFile:
        """The run that is asked; what cannot be told yet is taken to be as recorded.

        That is the tokenizer, what dtype "auto" is, whether FP8 by blocks is multiplied as it is
        stored, and the weights of a model that is not in a folder, if it has the recorded name.
        """
        asked, settings = self.configuration, recorded.settings
        identity = asked.identity
        if identity["dtype"] == "auto":
            identity["dtype"] = recorded.configuration.get("dtype")
        identity["quantization"] = _as_read(asked, recorded.configuration.get("quantization"))
        identity |= of_machine(asked, identity["dtype"])
        names = [asked.model, asked.adapter, asked.revision]
        model = self.weights
        if model is None and names == [
            settings.get(key) for key in ("model", "adapter", "revision")
        ]:
            model = recorded.fingerprints.get("model")
        elif model is None:
            model = "+".join(name for name in names if name is not None)
        unloaded = {"model": model, "tokenizer": recorded.fingerprints.get("tokenizer")}
        clock = recorded.fingerprints.get("clock")
        if clock is not None:
            unloaded["clock"] = like(asked.chat.date, clock) if asked.chat.date else clock
        return RunFile(identity, unloaded | self.workload.fingerprints, asked.extent)

    def refuse_changed_rows(self, path: Path, sampled: Mapping[str, str | None]) -> None:
        """Raises JournalError where a row is not the one that its samples on record answer.

        sampled: what the row is known by (`Record.row`), by problem id.
        """
        changed = [p for p in self.workload.problems if _is_changed(p, sampled)]
        ids = [problem.id for problem in changed]
        ids += [bad.id for bad in self.workload.bad_rows if bad.id in sampled]
        if not ids:
            return
        more = f", and {len(ids) - 1:,} more" if len(ids) > 1 else ""
        what = f"problem {ids[0]!r}{more}: its prompt or tests changed since"
        dataset = self.configuration.dataset
        has_id = not changed or any(changed[0].fields.get(name) is not None for name in dataset.id)
        if has_id or dataset.source is None:
            to_do = "put the row back, give the new one another id, or"
        else:
            to_do = (
                "a row without an id is known by its place, which one in front shifts: undo the"
                f" change, or give the rows a column {dataset.id[-1]!r} (--set dataset.id=COLUMN"
                " names another) and"
            )
        raise JournalError(f"{path}: {what} it was sampled: {to_do} {OTHER}")

    def refuse_changed_texts(self, path: Path, sampled: Mapping[str, str]) -> None:
        """Raises JournalError where the chat template makes another text of the same turns.

        sampled: `Record.text_hash` by problem id. The workload is one whose prompts are tokens.
        """
        texts = {problem.id: problem.text_hash for problem in self.workload.problems}
        changed = [name for name, text in sampled.items() if texts.get(name, text) != text]
        if changed:
            more = f", and {len(changed) - 1:,} more" if len(changed) > 1 else ""
            raise JournalError(
                f"{path}: problem {changed[0]!r}{more}: its chat template makes another text of "
                "the same turns than when it was sampled (of one that writes the date, say which "
                "by --set chat.date=...; else the tokenizer's own code writes the time, or another "
                f"version of transformers renders it): {OTHER}"
            )


def of_machine(configuration: Configuration, dtype: str | None) -> dict[str, int]:
    """What of the machine changes the samples of this job, and so is in its identity.

    Sums over ranks round otherwise than those of one. On a CPU in float32 and in the deterministic
    mode, where all else that is the same draws the same, that changes samples; elsewhere a batch
    of another size does, too. In that mode the blocks, which say from how many tokens on prompts
    share a node, and compiled layers, which round otherwise than others, count as well.
    """
    machine = configuration.machine
    found: dict[str, int] = {}
    if machine.tensor_parallel_size > 1 and (
        machine.deterministic or (dtype == "float32" and _is_on_cpu(configuration))
    ):
        found["tensor_parallel_size"] = machine.tensor_parallel_size
    if machine.deterministic:
        found["block_size"] = machine.block_size
        if machine.compile is False and not _is_on_cpu(configuration):
            found["compile"] = False
    return found


def _as_read(configuration: Configuration, recorded: Any) -> Any:
    """What weights were made as they were read, where it is not known yet."""
    from sharegen.engine.model.fp8.stored_fp8 import BLOCKS

    asked = configuration.machine.quantization
    if asked is None and recorded == BLOCKS:
        return BLOCKS
    return None if asked == "dequantize" else asked


def _is_on_cpu(configuration: Configuration) -> bool:
    from sharegen.engine.model.checkpoint.source import resolve_device

    return resolve_device(configuration.machine.device).type == "cpu"


def _is_changed(problem: Problem, sampled: Mapping[str, str | None]) -> bool:
    row = sampled.get(problem.id)
    return row is not None and row not in (problem.row_hash, problem.prompt_hash)
