"""The options of a job, declared once for every command that takes them.

A command takes one argument of type `JobOptions` (or `RunOptions`, which adds where the journal
goes) and is wrapped in `with_options`, which puts the fields of the dataclass on its command line.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sharegen.cli.completion import complete_dataset, complete_from
from sharegen.cli.flags import assigned, given, unescape, workers
from sharegen.cli.parameters import option, parse_journal, parse_size
from sharegen.common.shard import Shard

_data = functools.partial(option, "Data", default="the recipe's")
_sampling = functools.partial(option, "Sampling", default="the recipe's")
_machine = functools.partial(option, "Machine")
_output = functools.partial(option, "Output")


@dataclass(frozen=True)
class JobOptions:
    """What decides a job; None leaves it to the recipe."""

    model: Annotated[str | None, _data("--model", "Model folder or hub id.", "MODEL")] = None
    revision: Annotated[
        str | None,
        _data(
            "--revision",
            "Branch, tag or commit of a model on the hub.",
            "REVISION",
            default="the recipe's, or the main one",
        ),
    ] = None
    adapter: Annotated[
        str | None,
        _data("--adapter", "LoRA adapter (folder or hub id), merged at load.", "ADAPTER"),
    ] = None
    trust_remote_code: Annotated[
        bool, _data("--trust-remote-code", "Run code that comes with the model.", default=None)
    ] = False
    dataset: Annotated[
        str | None,
        _data(
            "--dataset",
            "A preset of the recipe, a file (JSONL, JSON, CSV, TSV, Parquet, text), a folder, a "
            "hub id, or - for rows that are piped in.",
            "DATASET",
            autocompletion=complete_dataset,
        ),
    ] = None
    dataset_config: Annotated[
        str | None, _data("--dataset-config", "Configuration on the hub.", "NAME")
    ] = None
    dataset_revision: Annotated[
        str | None,
        _data(
            "--dataset-revision",
            "Branch, tag or commit of a dataset on the hub.",
            "REVISION",
            default="the recipe's, or the main one",
        ),
    ] = None
    split: Annotated[str | None, _data("--split", "Split to ask.", "SPLIT")] = None
    limit: Annotated[
        int | None,
        _data("--limit", "Ask only the first so many rows.", "N", default="the recipe's, or all"),
    ] = None
    document: Annotated[
        str | None, _data("--document", "Text file that the prompts are about.", "FILE")
    ] = None
    few_shot: Annotated[int | None, _data("--few-shot", "Examples before every problem.", "N")] = (
        None
    )
    few_shot_file: Annotated[
        str | None, _data("--few-shot-file", "Take the examples from here.", "FILE")
    ] = None
    chat: Annotated[
        bool | None, _data("--chat/--no-chat", "Use the tokenizer's chat template.")
    ] = None
    system: Annotated[str | None, _data("--system", "System message; implies --chat.", "TEXT")] = (
        None
    )
    reorder: Annotated[
        bool,
        _data(
            "--reorder",
            "Put rows, and the fields that the recipe declares free to move, into the order that "
            "shares the most.",
            default=None,
        ),
    ] = False
    shard: Annotated[
        str | None,
        _data(
            "--shard",
            "Do only this part of the job, say 1/8; slurm takes it from a job array's task.",
            "I/N",
            default=None,
        ),
    ] = None
    samples: Annotated[int | None, _sampling("--samples, -n", "Samples of each problem.", "N")] = (
        None
    )
    temperature: Annotated[float | None, _sampling("--temperature", "0 is greedy.", "T")] = None
    top_p: Annotated[float | None, _sampling("--top-p", "Nucleus, above 0 and at most 1.", "P")] = (
        None
    )
    top_k: Annotated[int | None, _sampling("--top-k", "Likeliest tokens only; 0 is all.", "K")] = (
        None
    )
    max_tokens: Annotated[
        int | None, _sampling("--max-tokens", "Most tokens of a sample.", "N")
    ] = None
    stop: Annotated[
        list[str] | None,
        _sampling("--stop", "Ends a sample (repeatable; \\n is a newline).", "TEXT"),
    ] = None
    seed: Annotated[int | None, _sampling("--seed", "Of all draws.", "SEED")] = None
    stop_when: Annotated[
        str | None,
        _sampling(
            "--stop-when",
            "Draw no more of a problem once its vote is decided (exact), confident[=0.95] or "
            "unanimous over a window[=5] (approximate), or right=K of its samples are right.",
            "RULE",
            default="the recipe's, or none",
            autocompletion=complete_from("decided", "confident", "window", "right="),
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        _sampling(
            "--set",
            "Any key of the recipe, as sampling.min_p=0.05 (repeatable).",
            "KEY=VALUE",
            default=None,
        ),
    ] = None
    device: Annotated[
        str | None,
        _machine(
            "--device",
            "auto, cpu, cuda, cuda:1.",
            "DEVICE",
            default="auto",
            autocompletion=complete_from("auto", "cpu", "cuda"),
        ),
    ] = None
    dtype: Annotated[
        str | None,
        _machine(
            "--dtype",
            "auto, float32, float16 or bfloat16.",
            "DTYPE",
            default="auto",
            autocompletion=complete_from("auto", "float32", "float16", "bfloat16"),
        ),
    ] = None
    quantization: Annotated[
        str | None,
        _machine(
            "--quantization",
            "fp8: make large weights FP8 as they are read (on a GPU that has it).",
            "fp8",
            default="none",
            autocompletion=complete_from("fp8"),
        ),
    ] = None
    max_sequences: Annotated[
        int | None,
        _machine(
            "--max-sequences",
            "Most sequences that decode together.",
            "N",
            default="1024 on a GPU, 256 on a CPU",
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        _machine(
            "--kv-cache-memory",
            "Such as 8GiB.",
            "SIZE",
            default="what the job can use, of what is free",
            parser=parse_size,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        _machine(
            "--kv-cache-dtype",
            "auto (the model's), or fp8: 8 bits for what one sample alone reads.",
            "DTYPE",
            default="auto",
            autocompletion=complete_from("auto", "fp8"),
        ),
    ] = None
    swap_space: Annotated[
        float | None,
        _machine(
            "--swap-space",
            "Host memory for the KV of preempted samples; 0: they compute it again.",
            "GIB",
            default="0",
        ),
    ] = None
    block_size: Annotated[
        int | None, _machine("--block-size", "Tokens of a KV block.", "N", default="16")
    ] = None
    workers: Annotated[
        str | None,
        _machine(
            "--workers",
            "Engines that share the job, one a GPU or a part of a CPU's cores; auto: as many "
            "as there is room for.",
            "N|auto",
            default="1 on a GPU, auto for long jobs on a CPU",
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        _machine(
            "--tensor-parallel-size",
            "GPUs that the model of each worker is cut among, for one that is too large for "
            "one GPU.",
            "N",
            default="1",
        ),
    ] = None
    compile: Annotated[
        bool | None,
        _machine(
            "--compile/--no-compile",
            "Fuse and compile the model's layers on a GPU.",
            default="yes, where they compile",
        ),
    ] = None

    show_config: Annotated[
        bool,
        _output(
            "--show-config",
            "Print the job as recipe and flags make it, as YAML, and do nothing else.",
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

        stop = [unescape(text) for text in self.stop] if self.stop else None
        values = given(
            {
                "model": self.model,
                "revision": self.revision,
                "adapter": self.adapter,
                "trust_remote_code": self.trust_remote_code or None,
                "reorder": self.reorder or None,
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
                    "swap_space": self.swap_space,
                    "block_size": self.block_size,
                    "compile": self.compile,
                    "workers": workers(self.workers),
                    "tensor_parallel_size": self.tensor_parallel_size,
                },
            }
        )
        for assignment in self.set or ():
            values = merge(values, assigned(assignment))
        return values


@dataclass(frozen=True)
class RunOptions(JobOptions):
    """A job that is run: where its journal goes, and how much is said."""

    output: Annotated[
        Path | None,
        _output(
            "--output, -o",
            "The journal; of `run batch`, the answers.",
            "FILE",
            default="runs/<recipe>-<hash>.jsonl",
            parser=parse_journal,
        ),
    ] = None
    overwrite: Annotated[bool, _output("--overwrite", "Start the journal anew.")] = False
    adopt: Annotated[
        bool,
        _output(
            "--adopt",
            "Go on with a journal whose run file is missing or broken: its samples are taken to be "
            "of this job.",
        ),
    ] = False
    token_ids: Annotated[bool, _output("--token-ids", "Keep the tokens in the journal.")] = False
    keep_prompt: Annotated[
        bool, _output("--keep-prompt", "Keep the prompt in the journal's lines.")
    ] = False
    keep: Annotated[
        list[str] | None,
        _output(
            "--keep", "Keep this field of the row in the journal's lines (repeatable).", "FIELD"
        ),
    ] = None
    strict: Annotated[bool, _output("--strict", "Stop at the first bad row.")] = False
    retry_failed: Annotated[
        bool,
        _output(
            "--retry-failed", "Draw samples again that failed (their logits were NaN or infinite)."
        ),
    ] = False
    verify: Annotated[
        int | None,
        _output(
            "--verify",
            "When all is drawn, compute so many random steps again with the model's own "
            "attention, and report the largest difference.",
            "STEPS",
            min=1,
        ),
    ] = None
    execute: Annotated[
        bool,
        _output(
            "--execute", "Run the programs in a sandbox as they are drawn, for --stop-when right=K."
        ),
    ] = False
    unsafe_execution: Annotated[
        bool,
        _output(
            "--unsafe-execution",
            "With --execute: run them even where nothing can isolate them from your files "
            "and network.",
        ),
    ] = False
    quiet: Annotated[bool, _output("--quiet, -q", "Print the journal's path, nothing else.")] = (
        False
    )
    ray: Annotated[
        str | None,
        _machine(
            "--ray",
            "Have the workers in this Ray cluster: its address, or auto for the one that "
            "runs here. Without --workers, one a GPU, or as many as fit.",
            "ADDRESS|auto",
        ),
    ] = None

    def flags(self) -> dict[str, Any]:
        from sharegen.workload.recipe import merge

        own = given(
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
