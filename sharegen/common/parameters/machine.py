"""Where and how wide to run: the parameters of `EngineConfig`, LLM and the flags of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sharegen.common.parameters.parameter import Flag, Parameter

_MOST_SEQUENCES = 1 << 16  # far beyond what is of use; every row has tables of its own


@dataclass(frozen=True, kw_only=True)
class EngineParameters:
    """What an engine is told by the same names everywhere."""

    max_sequences: Annotated[
        int | None,
        Parameter(
            "The most sequences that decode together.",
            ge=1,
            le=_MOST_SEQUENCES,
            flag=Flag("--max-sequences", "N", default="1024 on a GPU, 256 on a CPU"),
        ),
    ] = None
    kv_cache_memory: Annotated[
        int | None,
        Parameter(
            "Bytes of the KV cache.",
            ge=1,
            flag=Flag(
                "--kv-cache-memory",
                "SIZE",
                "Memory of the KV cache, such as 8GiB.",
                default="what the job can use, of what is free",
            ),
            examples=(8 << 30,),
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8"],
        Parameter(
            '"fp8" keeps in 8 bits the KV that one sample alone reads; "auto" keeps all of it in '
            "the model's dtype.",
            changes_samples=True,
            flag=Flag(
                "--kv-cache-dtype",
                "DTYPE",
                "Type of the KV: auto (the model's), or fp8, which keeps in 8 bits what one sample "
                "alone reads.",
                complete=("auto", "fp8"),
            ),
        ),
    ] = "auto"
    logprobs_mode: Annotated[
        Literal["raw_logprobs", "processed_logprobs"],
        Parameter(
            'What log-probabilities of outputs are of: "raw_logprobs" is the model\'s own '
            'distribution, "processed_logprobs" the one drawn from, after penalties, temperature '
            "and filters. Those of prompts are the model's own.",
            changes_samples=True,
            flag=Flag(
                "--logprobs-mode",
                "MODE",
                "Which distribution log-probabilities are of: raw_logprobs (the model's own) or "
                "processed_logprobs (the one drawn from, after temperature and filters).",
                complete=("raw_logprobs", "processed_logprobs"),
            ),
        ),
    ] = "raw_logprobs"
    swap_space: Annotated[
        float,
        Parameter(
            "GiB of host memory, for each GPU, for the KV of preempted samples; with 0 they "
            "compute it again.",
            ge=0,
            flag=Flag("--swap-space", "GIB"),
        ),
    ] = 0.0
    block_size: Annotated[
        int, Parameter("Tokens of a KV block.", ge=1, flag=Flag("--block-size", "N"))
    ] = 16
    compile: Annotated[
        bool | None,
        Parameter(
            "Whether the model's layers are fused and compiled on a GPU, and all kernels before "
            "the first token. For a command, and an LLM of one engine, null is where what is asked "
            "is done sooner so.",
            flag=Flag(
                "--compile/--no-compile",
                help="Fuse and compile the model's layers on a GPU.",
                default="where the job is done sooner so",
            ),
        ),
    ] = None
    deterministic: Annotated[
        bool,
        Parameter(
            "Whether a sample has the same bits whatever runs beside it, on a GPU too.",
            changes_samples=True,
            flag=Flag(
                "--deterministic",
                help="Give each sample the same bits whatever runs beside it, on a GPU too.",
            ),
        ),
    ] = False
    any_tree: Annotated[
        bool,
        Parameter(
            "Whether a sample has the same bits whatever shares its prompt, too: prompt_logprobs "
            "of prompt and sample are those that were drawn. Needs the deterministic mode.",
            changes_samples=True,
            flag=Flag(
                "--any-tree",
                help="With --deterministic: give each sample the same bits whatever shares its "
                "prompt, too.",
            ),
        ),
    ] = False
    show_model: Annotated[
        bool,
        Parameter(
            "Whether five lines say what was found in the model, and what was made fast of it.",
            flag=Flag(
                "--show-model",
                help="Say in five lines what was found in the model, and what was made fast of it.",
            ),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class LoadParameters:
    """How the weights are loaded."""

    device: Annotated[
        str,
        Parameter(
            "The device that computes: auto, cpu, cuda or cuda:1.",
            flag=Flag("--device", "DEVICE", complete=("auto", "cpu", "cuda")),
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        Parameter(
            'What the model computes in; "auto" is float32 on a CPU and the checkpoint\'s own on '
            "a GPU.",
            changes_samples=True,
            flag=Flag(
                "--dtype",
                "DTYPE",
                "What the model computes in: auto, float32, float16 or bfloat16.",
                complete=("auto", "float32", "float16", "bfloat16"),
            ),
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["fp8", "fp8-blocks", "mxfp4", "dequantize"] | None,
        Parameter(
            '"fp8" makes large weights FP8 as they are read, on a GPU that has it. "mxfp4" '
            "multiplies experts that a checkpoint has in MXFP4 as they are stored, which are "
            'dequantised otherwise. "fp8-blocks" does so with weights in FP8 by blocks; null does, '
            "too, where a GPU has their products and one alone computes, in bfloat16 and without "
            'an adapter; "dequantize" does not.',
            changes_samples=True,
            flag=Flag(
                "--quantization",
                "KIND",
                "Make large weights FP8 as they are read (fp8); multiply as they are stored a "
                "checkpoint's experts in MXFP4 (mxfp4) or its FP8 by blocks (fp8-blocks); or "
                "dequantise what it has (dequantize). FP8 needs a GPU that has it.",
                default="fp8-blocks where a checkpoint and the GPU have it, else none",
                complete=("fp8", "fp8-blocks", "mxfp4", "dequantize"),
            ),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class WorkerParameters:
    """How many engines there are, and where."""

    workers: Annotated[
        int | Literal["auto"] | None,
        Parameter(
            "Engines that share the job, each in a process of its own: one a GPU, or a part of a "
            'CPU\'s cores; "auto" is as many as there is room for. For a command null is one on a '
            "GPU and, for long jobs, as many as pay on a CPU.",
            flag=Flag(
                "--workers",
                "N|auto",
                "Engines that share the job, one a GPU or a part of a CPU's cores; auto: as many "
                "as there is room for.",
                default="1 on a GPU, auto for long jobs on a CPU",
            ),
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int,
        Parameter(
            "GPUs that the model of each worker is split among, for one that is too large for "
            "one GPU.",
            ge=1,
            flag=Flag("--tensor-parallel-size", "N"),
        ),
    ] = 1
    ray: Annotated[
        str | None,
        Parameter(
            "The address of the Ray cluster that the workers are in.",
            flag=Flag(
                "--ray",
                "ADDRESS|auto",
                "Run the workers in this Ray cluster: its address, or auto for the one that "
                "runs here. Without --workers, one a GPU, or as many as fit.",
                default="none",
                run_only=True,
            ),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class MachineParameters(WorkerParameters, EngineParameters, LoadParameters):
    """The section `machine`, which flags say and no recipe."""
