"""One job, resolved: recipe, preset and flags merged, checked, with paths made absolute.

The configuration has two halves. Its identity decides the samples: a journal is continued only
under the same identity. Its extent may change from one run to the next: how many samples and rows
(every record says by a hash which row it answers), memory and batch, and where the model, the
dataset and the examples lie, whose fingerprints count in place of their names. How answers are
read from the samples is part of the extent too: it changes none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from sharegen.common.grammar import prepared
from sharegen.common.log import log
from sharegen.common.mappings import merge
from sharegen.common.parameters.data import OrderParameters, TokenParameters
from sharegen.common.parameters.machine import MachineParameters
from sharegen.common.parameters.parameter import declared
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError
from sharegen.workload.flags import FLAGS
from sharegen.workload.idle import (
    check_decoding,
    refuse_idle_document,
    refuse_idle_fields,
    refuse_idle_flags,
    refuse_idle_rule,
    refuse_no_text,
)
from sharegen.workload.recipe import Job, Recipe, load_recipe
from sharegen.workload.sampling_section import Sampling
from sharegen.workload.sources import (
    choose_dataset,
    file_of,
    model_asked,
    model_of,
    rows_named,
    schema_of,
    schema_preset,
    source_of,
)
from sharegen.workload.validation import Strict, validate

SECTIONS = ("dataset", "few_shot", "chat", "sampling", "keep", "machine")

_PLACES = ("model", "adapter", "revision", "few_shot", "machine")  # and how wide to run

OF_CONVERSATIONS = ("template_kwargs", "tools", "add_generation_prompt", "continue_final_message")
"""What of `chat` counts for rows that are conversations, whether or not prompts become chats."""

_BESIDE = ("vote", "answer", "token_ids", "keep")  # what is told, read or kept of the samples


def _unaliased(dtype: Any) -> Any:
    """Turn torch's and vLLM's other names of two dtypes into those that are on record."""
    return {"half": "float16", "float": "float32"}.get(dtype, dtype) if dtype else dtype


class Machine(Strict, MachineParameters):  # type: ignore[misc]
    """Where and how wide to run; null leaves it to the engine."""

    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"], BeforeValidator(_unaliased)
    ] = "auto"
    workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None


_OF_SAMPLES = [
    name for name, each in declared(MachineParameters).items() if each.parameter.changes_samples
]
"""What of a machine changes the samples, in a journal's identity by these names."""


class Configuration(Job, OrderParameters, TokenParameters):  # type: ignore[misc]
    """A job with nothing left open.

    recipe: its name; preset: the preset it is based on, if any. reorder and token_ids are no part
    of a recipe.
    """

    recipe: str
    preset: str | None = None
    machine: Machine = Machine()

    _is_bundled: bool = PrivateAttr(default=False)

    @property
    def is_bundled(self) -> bool:
        """Whether its recipe is one of ours, whose patterns need not be watched."""
        return self._is_bundled

    @property
    def model_name(self) -> str:
        """The model's hub id, or the name of its folder."""
        assert self.model is not None
        model = Path(self.model)
        return model.name if model.is_absolute() else self.model

    @property
    def identity(self) -> dict[str, Any]:
        """All that changes the samples, but for the content of files.

        The dtype is the one asked for, maybe "auto". Of the templates those in use: what the
        others say is of no matter.
        """
        values = self.model_dump(exclude={"recipe", "preset", *_BESIDE, *_PLACES})
        values["dataset"] = {"id": self.dataset.id}  # what samples are keyed and drawn by
        values["sampling"].pop("samples")
        values["sampling"].pop("stop_when")  # which samples there are, not what they are
        if self.sampling.decoding == "beam":
            values["sampling"]["beam_width"] = self.sampling.rows
        chat = values["chat"]
        chat.pop("stop")  # those in use are the sampling's
        chat.pop("template")  # its content counts
        chat.pop("date")  # if its template asks for it, the journal has it
        if self.chat.enabled:
            del values["prompt"], values["example"]
            if self.prompt.free:
                values["prompt"] = self.prompt.model_dump(exclude={"text"})
        else:
            values["chat"] = {name: chat[name] for name in ("enabled", *OF_CONVERSATIONS)}
        return values | {name: getattr(self.machine, name) for name in _OF_SAMPLES}

    @property
    def extent(self) -> dict[str, Any]:
        """All that may change within a journal."""
        return _without(self.model_dump(), self.identity)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Configuration:
        """The configuration back from a run.json's `settings` (identity with extent)."""
        besides = (*_OF_SAMPLES, "shard", "tensor_parallel_size", "block_size", "compile")
        values = {key: value for key, value in settings.items() if key not in besides}
        return validate(cls, values, "the recorded configuration")


def resolve(
    recipe_name: str,
    dataset: str | None = None,
    flags: Mapping[str, Any] | None = None,
    schema: str | None = None,
    has_rows: bool = True,
) -> Configuration:
    """The configuration of a recipe with a dataset and flags on top.

    dataset: a preset of the recipe, a file or folder, a hub id, or - for what is piped in; None is
        the default preset.
    flags: a mapping shaped like the recipe (plus `machine`), with what the caller sets.
    schema: the preset whose rows the file, folder or hub id has; where the recipe's presets have
        rows that take code to read, it is told from the first row.
    has_rows: whether a dataset is asked; a server's requests come by another way.

    Raises UsageError for whatever does not fit together.
    """
    flags = flags or {}
    for key, where in (("recipe", "is the argument"), ("preset", "goes by --dataset")):
        if key in flags:
            raise UsageError(f"--set {key}={flags[key]}: the {key} {where}")
    for section in SECTIONS:
        if not isinstance(flags.get(section) or {}, Mapping):
            raise UsageError(
                f"--set {section}={flags[section]}: {section} is a section: set one of its keys, "
                f"as {section}.KEY=VALUE"
            )
    recipe = load_recipe(recipe_name)
    preset, source = choose_dataset(recipe, dataset) if has_rows else (None, None)
    if schema is not None:
        schema = schema_preset(recipe, schema)
    if source is not None:
        preset = schema or schema_of(recipe, source, flags)
    values = recipe.merged(preset)
    if source is not None:
        own = {"source": source, "config": None, "revision": None, "needles": None}
        values = merge(values, {"dataset": own})
    if "model" in flags:
        values["revision"] = None  # of the recipe's model
    values = merge(values, flags)
    if source is not None and not values.get("model") and values["dataset"].get("requests"):
        values["model"] = model_asked(source)
    _settle_chat(recipe, values, flags)
    if values.get("trust_remote_code") and not flags.get("trust_remote_code"):
        values["trust_remote_code"] = False
        log(
            f"the recipe {recipe.name} would run code that comes with the model: that takes "
            "--trust-remote-code on the command line too"
        )
    values |= {"recipe": recipe.name, "preset": preset}
    by_flag = {key: FLAGS.get(key, f"--set {key}") for key in _keys(flags)}
    job = validate(Configuration, values, str(recipe.path), flags=by_flag)
    if job.sampling.max_tokens is not None and job.sampling.min_tokens > job.sampling.max_tokens:
        raise UsageError(
            f"max_tokens is {job.sampling.max_tokens}: it must be at least min_tokens, "
            f"{job.sampling.min_tokens}"
        )
    check_structured(job.sampling)
    source = source_of(recipe, job)
    if has_rows and source is None and job.dataset.needles is None:
        raise UsageError(f"the recipe {recipe.name} has no dataset.source: give --dataset")
    refuse_idle_flags(recipe, job, source, flags)
    refuse_idle_document(recipe, job)
    check_decoding(job.sampling)
    refuse_idle_rule(recipe, job)
    refuse_idle_fields(recipe, job, job.reorder)
    refuse_no_text(recipe, job, job.token_ids)
    if job.chat.add_generation_prompt and job.chat.continue_final_message:
        raise UsageError(
            "chat.add_generation_prompt and chat.continue_final_message: an answer goes on within "
            "the last turn or begins one of its own: set one of them"
        )
    job._is_bundled = recipe.is_bundled
    return job.model_copy(
        update={
            "model": model_of(recipe, job, is_flag="model" in flags),
            "dataset": job.dataset.model_copy(
                update={
                    "source": source,
                    "rows": rows_named(job.dataset.rows),
                    "document": file_of(recipe, job.dataset.document, "--document"),
                }
            ),
            "few_shot": job.few_shot.model_copy(
                update={"file": file_of(recipe, job.few_shot.file, "--few-shot-file")}
            ),
            "chat": job.chat.model_copy(
                update={"template": file_of(recipe, job.chat.template, "--set chat.template")}
            ),
        }
    )


def check_structured(sampling: Sampling) -> None:
    """Raise UsageError for structured outputs that cannot be, before a model is loaded."""
    asked = StructuredOutputsParams.of(sampling.structured_outputs)
    if asked is not None:
        prepared(asked)


def _without(values: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without those that stand in `taken` too, section by section."""
    left: dict[str, Any] = {}
    for name, value in values.items():
        if name not in taken:
            left[name] = value
        elif isinstance(value, Mapping) and (below := _without(value, taken[name])):
            left[name] = below
    return left


def _settle_chat(recipe: Recipe, values: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Chat or not, from `--chat`, `--system` and the recipe; chat has stops of its own."""
    asked = flags.get("chat") or {}
    chat = dict(values.get("chat") or {})
    if asked.get("system") is not None:
        if asked.get("enabled") is False:
            raise UsageError("--system is a turn of a chat: leave out --no-chat")
        chat["enabled"] = True
    if chat.get("enabled"):
        if not chat.get("user"):
            raise UsageError(f"--chat: the recipe {recipe.name} has no template 'chat.user'")
        if "stop" not in (flags.get("sampling") or {}):
            values["sampling"] = merge(
                values.get("sampling") or {}, {"stop": chat.get("stop") or []}
            )
    values["chat"] = chat


def _keys(flags: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values."""
    for name, value in flags.items():
        if isinstance(value, Mapping) and value:
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"
