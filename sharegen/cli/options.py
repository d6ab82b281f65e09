"""The options of a job, declared once for every command that takes them.

A command takes one argument of type `JobOptions` (or `RunOptions`, which adds where the journal
goes) and is wrapped in `with_options`, which puts the fields of the dataclass on its command line.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import yaml

from sharegen.common.shard import Shard
from sharegen.errors import UsageError

_DATA, _SAMPLING, _MACHINE, _OUTPUT = "Data", "Sampling", "Machine", "Output"
_SHOWN = 80  # characters of a --set that is wrong
_SIZES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(text: str) -> int:
    """Bytes from `500000000`, `8GiB`, `8G` or `1.5 GB`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size such as 8GiB or 500MiB")
    return int(float(match[1]) * _SIZES[match[2].upper()])


def parse_path(text: str) -> Path:
    """A path; an empty text, as an unset variable leaves it, would be the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


@dataclass(frozen=True)
class JobOptions:
    """What decides a job; None leaves it to the recipe."""

    model: Annotated[
        str | None, _option("--model", help="Model folder or hub id.", panel=_DATA)
    ] = None
    revision: Annotated[
        str | None,
        _option("--revision", help="Branch, tag or commit of a model on the hub.", panel=_DATA),
    ] = None
    adapter: Annotated[
        str | None,
        _option("--adapter", help="LoRA adapter (folder or hub id), merged at load.", panel=_DATA),
    ] = None
    trust_remote_code: Annotated[
        bool,
        _option("--trust-remote-code", help="Run code that comes with the model.", panel=_DATA),
    ] = False
    dataset: Annotated[
        str | None,
        _option(
            "--dataset",
            help="A preset of the recipe, a file (JSONL, JSON, CSV, Parquet, text), a folder or "
            "a hub id.",
            panel=_DATA,
        ),
    ] = None
    dataset_config: Annotated[
        str | None, _option("--dataset-config", help="Configuration on the hub.", panel=_DATA)
    ] = None
    dataset_revision: Annotated[
        str | None,
        _option(
            "--dataset-revision", help="Branch, tag or commit of a dataset on the hub.", panel=_DATA
        ),
    ] = None
    split: Annotated[str | None, _option("--split", help="Split to ask.", panel=_DATA)] = None
    limit: Annotated[
        int | None, _option("--limit", help="Ask only the first so many rows.", panel=_DATA)
    ] = None
    document: Annotated[
        str | None,
        _option("--document", help="Text file that the prompts are about.", panel=_DATA),
    ] = None
    few_shot: Annotated[
        int | None, _option("--few-shot", help="Examples before every problem.", panel=_DATA)
    ] = None
    few_shot_file: Annotated[
        str | None, _option("--few-shot-file", help="Take the examples from here.", panel=_DATA)
    ] = None
    chat: Annotated[
        bool | None,
        _option("--chat/--no-chat", help="Use the tokenizer's chat template.", panel=_DATA),
    ] = None
    system: Annotated[
        str | None, _option("--system", help="System message; implies --chat.", panel=_DATA)
    ] = None
    shard: Annotated[
        str | None,
        _option(
            "--shard",
            help="Do only this part of the job, say 1/8; slurm takes it from a job array's task.",
            panel=_DATA,
            metavar="I/N",
        ),
    ] = None
    samples: Annotated[
        int | None, _option("--samples", "-n", help="Samples of each problem.", panel=_SAMPLING)
    ] = None
    temperature: Annotated[
        float | None, _option("--temperature", help="0 is greedy.", panel=_SAMPLING)
    ] = None
    top_p: Annotated[
        float | None, _option("--top-p", help="Nucleus, above 0 and at most 1.", panel=_SAMPLING)
    ] = None
    top_k: Annotated[
        int | None, _option("--top-k", help="Likeliest tokens only; 0 is all.", panel=_SAMPLING)
    ] = None
    max_tokens: Annotated[
        int | None, _option("--max-tokens", help="Most tokens of a sample.", panel=_SAMPLING)
    ] = None
    stop: Annotated[
        list[str] | None,
        _option("--stop", help="Ends a sample (repeatable; \\n is a newline).", panel=_SAMPLING),
    ] = None
    seed: Annotated[int | None, _option("--seed", help="Of all draws.", panel=_SAMPLING)] = None
    stop_when: Annotated[
        str | None,
        _option(
            "--stop-when",
            help="Draw no more of a problem once its vote is decided (exact), confident[=0.95] or "
            "unanimous over a window[=5] (approximate), or right=K of its samples are right.",
            panel=_SAMPLING,
            metavar="RULE",
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        _option(
            "--set",
            help="Any key of the recipe, as sampling.min_p=0.05 (repeatable).",
            panel=_SAMPLING,
            metavar="KEY=VALUE",
        ),
    ] = None
    device: Annotated[
        str | None, _option("--device", help="auto, cpu, cuda, cuda:1.", panel=_MACHINE)
    ] = None
    dtype: Annotated[
        str | None,
        _option("--dtype", help="auto, float32, float16 or bfloat16.", panel=_MACHINE),
    ] = None
    quantization: Annotated[
        str | None,
        _option(
            "--quantization",
            help="fp8: make large weights FP8 as they are read (on a GPU that has it).",
            panel=_MACHINE,
            metavar="fp8",
        ),
    ] = None
    max_sequences: Annotated[
        int | None,
        _option(
            "--max-sequences",
            help="Most sequences that decode together [1024 on a GPU, 256 on a CPU].",
            panel=_MACHINE,
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        _option(
            "--kv-cache-memory",
            help="Such as 8GiB.",
            panel=_MACHINE,
            parser=parse_size,
            metavar="SIZE",
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        _option(
            "--kv-cache-dtype",
            help="auto (the model's), or fp8: 8 bits for what one sample alone reads.",
            panel=_MACHINE,
        ),
    ] = None
    block_size: Annotated[
        int | None, _option("--block-size", help="Tokens of a KV block.", panel=_MACHINE)
    ] = None
    workers: Annotated[
        str | None,
        _option(
            "--workers",
            help="Engines that share the job, one a GPU or a part of a CPU's cores; auto: as many "
            "as there is room for [1 on a GPU, auto for long jobs on a CPU].",
            panel=_MACHINE,
            metavar="N|auto",
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        _option(
            "--tensor-parallel-size",
            help="GPUs that the model of each worker is cut among, for one that is too large for "
            "one GPU [1].",
            panel=_MACHINE,
            metavar="N",
        ),
    ] = None
    compile: Annotated[
        bool | None,
        _option(
            "--compile/--no-compile",
            help="Fuse and compile the model's layers on a GPU [yes, where they compile].",
            panel=_MACHINE,
        ),
    ] = None

    show_config: Annotated[
        bool,
        _option(
            "--show-config",
            help="Print the job as recipe and flags make it, as YAML, and do nothing else.",
            panel=_OUTPUT,
        ),
    ] = False

    @property
    def part(self) -> Shard | None:
        """What --shard says. Raises UsageError for what is no part."""
        return None if self.shard is None else Shard.parse(self.shard)

    def flags(self) -> dict[str, Any]:
        """What was given, shaped like a recipe (see `sharegen.workload.configuration.resolve`).

        Raises UsageError for a --set that is no assignment.
        """
        from sharegen.workload.recipe import merge

        stop = [_unescape(text) for text in self.stop] if self.stop else None
        given = _given(
            {
                "model": self.model,
                "revision": self.revision,
                "adapter": self.adapter,
                "trust_remote_code": self.trust_remote_code or None,
                "dataset": {
                    "config": self.dataset_config,
                    "revision": self.dataset_revision,
                    "split": self.split,
                    "limit": self.limit,
                    "document": self.document,
                },
                "few_shot": {"k": self.few_shot, "file": self.few_shot_file},
                "chat": {"enabled": self.chat, "system": self.system},
                "sampling": {
                    "samples": self.samples,
                    "temperature": self.temperature,
                    "top_p": self.top_p,
                    "top_k": self.top_k,
                    "max_tokens": self.max_tokens,
                    "stop": stop,
                    "seed": self.seed,
                    "stop_when": self.stop_when,
                },
                "machine": {
                    "device": self.device,
                    "dtype": self.dtype,
                    "quantization": self.quantization,
                    "max_sequences": self.max_sequences,
                    "kv_cache_memory": self.kv_cache_memory,
                    "kv_cache_dtype": self.kv_cache_dtype,
                    "block_size": self.block_size,
                    "compile": self.compile,
                    "workers": _workers(self.workers),
                    "tensor_parallel_size": self.tensor_parallel_size,
                },
            }
        )
        for assignment in self.set or ():
            given = merge(given, _assigned(assignment))
        return given


@dataclass(frozen=True)
class RunOptions(JobOptions):
    """A job that is run: where its journal goes, and how much is said."""

    output: Annotated[
        Path | None,
        _option(
            "--output",
            "-o",
            help="The journal [runs/<recipe>-<hash>.jsonl].",
            panel=_OUTPUT,
            parser=parse_path,
        ),
    ] = None
    overwrite: Annotated[
        bool, _option("--overwrite", help="Start the journal anew.", panel=_OUTPUT)
    ] = False
    token_ids: Annotated[
        bool, _option("--token-ids", help="Keep the tokens in the journal.", panel=_OUTPUT)
    ] = False
    keep_prompt: Annotated[
        bool,
        _option("--keep-prompt", help="Keep the prompt in the journal's lines.", panel="Output"),
    ] = False
    keep: Annotated[
        list[str] | None,
        _option(
            "--keep",
            help="Keep this field of the row in the journal's lines (repeatable).",
            panel="Output",
            metavar="FIELD",
        ),
    ] = None
    strict: Annotated[
        bool, _option("--strict", help="Stop at the first bad row.", panel=_OUTPUT)
    ] = False
    retry_failed: Annotated[
        bool,
        _option(
            "--retry-failed",
            help="Draw samples again that failed (their logits were NaN or infinite).",
            panel=_OUTPUT,
        ),
    ] = False
    verify: Annotated[
        int | None,
        _option(
            "--verify",
            help="When all is drawn, compute so many random steps again with the model's own "
            "attention, and report the largest difference.",
            panel=_OUTPUT,
            min=1,
            metavar="STEPS",
        ),
    ] = None
    execute: Annotated[
        bool,
        _option(
            "--execute",
            help="Run the programs in a sandbox as they are drawn, for --stop-when right=K.",
            panel=_OUTPUT,
        ),
    ] = False
    unsafe_execution: Annotated[
        bool,
        _option(
            "--unsafe-execution",
            help="With --execute: run them even where nothing can isolate them from your files "
            "and network.",
            panel=_OUTPUT,
        ),
    ] = False
    quiet: Annotated[
        bool,
        _option("--quiet", "-q", help="Print the journal's path, nothing else.", panel=_OUTPUT),
    ] = False
    ray: Annotated[
        str | None,
        _option(
            "--ray",
            help="Have the workers in this Ray cluster: its address, or auto for the one that "
            "runs here. Without --workers, one a GPU, or as many as fit.",
            panel=_MACHINE,
            metavar="ADDRESS|auto",
        ),
    ] = None

    def flags(self) -> dict[str, Any]:
        from sharegen.workload.recipe import merge

        own = _given(
            {
                "token_ids": self.token_ids or None,
                "keep": {"prompt": self.keep_prompt or None, "fields": self.keep},
                "machine": {"ray": self.ray},
            }
        )
        return merge(super().flags(), own)


@dataclass(frozen=True)
class ProgramOptions(RunOptions):
    """A job whose dataset is an argument and whose prompts are about no document.

    Both flags are left out of the help; whoever gives one is told why it is refused.
    """

    dataset: Annotated[str | None, typer.Option("--dataset", hidden=True)] = None
    document: Annotated[str | None, typer.Option("--document", hidden=True)] = None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter that is an options dataclass by one parameter for each field."""
    hints = get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    [(name, kind)] = ((name, hint) for name, hint in hints.items() if _is_options(hint))
    declared = get_type_hints(kind, include_extras=True)
    own = [p.replace(annotation=hints[n], kind=p.KEYWORD_ONLY)
           for n, p in signature.parameters.items() if n != name]  # fmt: skip
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=declared[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(kind)
    ]

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        options = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values, **{name: options})

    wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    return wrapped


def _is_options(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, JobOptions)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Without the Nones, and without sections that are empty then."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            out[key] = kept
    return out


def _assigned(text: str) -> dict[str, Any]:
    """`a.b=1` as {"a": {"b": 1}}; the value is YAML."""
    from sharegen.workload import plain_yaml

    key, equals, value = text.partition("=")
    parts = key.split(".")
    if not equals or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"--set {text:.{_SHOWN}}: give a key of the recipe and a value: sampling.min_p=0.05"
        )
    if len(parts) > plain_yaml.MAX_DEPTH:
        raise UsageError(f"--set {text:.{_SHOWN}}: no recipe has that many sections")
    try:
        assigned: Any = plain_yaml.load(value)
    except yaml.MarkedYAMLError as error:
        raise UsageError(
            f"--set {text:.{_SHOWN}}: the value is not YAML: {error.problem}"
        ) from None
    for part in reversed(parts):
        assigned = {part: assigned}
    return assigned


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _workers(text: str | None) -> int | str | None:
    """What --workers says. Raises UsageError for what is neither a number nor auto."""
    if text is None or text == "auto":
        return text
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--workers {text}: it must be a number of workers or auto")
    return int(text[:9])
