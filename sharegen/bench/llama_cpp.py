"""Weights and a shared prompt through llama.cpp's own benchmark and through sharegen.

`llama-batched-bench` computes one prompt, lets so many sequences share it, and decodes them
together. It feeds random tokens and draws none: what sharegen takes for drawing is on its side
alone. Both have the same file, all threads of the CPU, and no GPU.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from sharegen.bench.generate import GenerationJob, Pace, config_for, time_sharegen
from sharegen.common.extras import install
from sharegen.engine.model.checkpoint.gguf_writer import write_gguf
from sharegen.engine.model.checkpoint.source import quiet
from sharegen.engine.model.load import load_model
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.errors import SharegenError, UsageError
from sharegen.workload.recipe import RECIPES

BATCHES = (20, 80, 256)
TOOL = "llama-batched-bench"
BUNDLED = RECIPES / "tinymath" / "model"
_MAGIC = b"GGUF"


@dataclass(frozen=True)
class Measured:
    """One line of the tool: sequences, tokens of each, and the seconds of prompt and decoding."""

    sequences: int
    tokens: int
    seconds: float

    @property
    def pace(self) -> Pace:
        return Pace(self.sequences * self.tokens, self.seconds)


def bench_llama_cpp(
    model: Path = BUNDLED,
    *,
    prompt_tokens: int = 752,
    max_tokens: int = 128,
    batches: Sequence[int] = BATCHES,
    dtype: str = "float32",
) -> dict[str, Any]:
    """Time one shared prompt both ways; prints a table to stderr and returns the numbers.

    model: a GGUF file, which transformers reads for sharegen, or the folder of a Llama checkpoint,
    which is written as one for the time of the benchmark. batches: sequences together, each of
    max_tokens. dtype: of sharegen's weights, float32 or bfloat16, and of the file that is written;
    llama.cpp keeps that of a file that is given.

    Raises UsageError for a model or a tool that is not there, in one line that says what to do.
    """
    tool = _tool()
    with _as_gguf(model, getattr(torch, dtype)) as file:
        module = _read(file, getattr(torch, dtype))
        loaded = load_model(module)
        loaded.check_length(prompt_tokens + max_tokens)
        vocabulary = loaded.vocab_size
        loaded.release()
        theirs = run_tool(tool, file, prompt_tokens, max_tokens, batches)
    prompt = np.random.default_rng(0).integers(0, vocabulary, prompt_tokens).tolist()
    ours = {}
    for sequences in batches:
        config = config_for(load_model(module), [prompt], sequences, max_tokens, sequences)
        loaded = load_model(module)
        job = GenerationJob([prompt], sequences, max_tokens, 1.0)
        ours[sequences], _ = time_sharegen(
            open_engine(Setting(loaded, None, config)), job, loaded.device
        )
        loaded.release()
    result = {
        "bench": "llama.cpp",
        "model": str(model),
        "dtype": dtype,
        "threads": torch.get_num_threads(),
        "prompt_tokens": prompt_tokens,
        "max_tokens": max_tokens,
        "llama_cpp_tokens_per_second": {
            size: round(pace.tokens_per_second, 1) for size, pace in theirs.items()
        },
        "sharegen_tokens_per_second": {
            size: round(pace.tokens_per_second, 1) for size, pace in ours.items()
        },
    }
    _show(result, theirs, ours)
    return result


def run_tool(
    tool: str, model: Path, prompt_tokens: int, max_tokens: int, batches: Sequence[int]
) -> dict[int, Pace]:
    """Run llama.cpp for each number of sequences under one prompt, the prompt included.

    Raises SharegenError where the tool fails, or leaves one out.
    """
    context = prompt_tokens + max(batches) * max_tokens
    threads = str(torch.get_num_threads())
    command = [tool, "-m", str(model), "-c", str(context), "-ngl", "0", "-pps", "-kvu"]
    command += ["-t", threads, "-tb", threads, "--output-format", "jsonl"]
    command += ["-npp", str(prompt_tokens), "-ntg", str(max_tokens)]
    command += ["-npl", ",".join(map(str, batches))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        last = said[-1] if said else f"it ended with code {done.returncode}"
        raise SharegenError(f"{TOOL} failed: {last:.300}")
    measured = {line.sequences: line.pace for line in parse(done.stdout)}
    missing = [size for size in batches if size not in measured]
    if missing:
        raise SharegenError(f"{TOOL} gave no result for {missing[0]} sequences")
    return measured


def parse(output: str) -> list[Measured]:
    """Return the results among what the tool printed with `--output-format jsonl`."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            values = json.loads(line)
            found.append(Measured(values["pl"], values["tg"], values["t"]))
    return found


def _tool() -> str:
    found = shutil.which(TOOL)
    if found is None:
        raise UsageError(
            f"{TOOL} is not on the PATH: build it from llama.cpp's source (cmake -B build, cmake "
            f"--build build --target {TOOL}) and add build/bin to the PATH"
        )
    return found


@contextmanager
def _as_gguf(model: Path, dtype: torch.dtype) -> Iterator[Path]:
    """The GGUF file: the one that is given, or a temporary one of the checkpoint in a folder."""
    if model.is_dir():
        _need_gguf()
        with tempfile.TemporaryDirectory(prefix="sharegen-") as folder:
            file = Path(folder) / "model.gguf"
            write_gguf(model, file, dtype)
            yield file
        return
    if not model.is_file():
        raise UsageError(
            f"--model {model}: there is no such file; give a GGUF file or a model folder"
        )
    with model.open("rb") as opened:
        if opened.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(f"--model {model}: this is no GGUF file; llama.cpp reads no other")
    _need_gguf()
    yield model


def _need_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise UsageError(f"GGUF files are written and read with gguf: {install('gguf')}")


def _read(model: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Read the model of a GGUF file, in `dtype`, by transformers' own reader."""
    try:
        with quiet():
            module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                model.parent, gguf_file=model.name, dtype=dtype, local_files_only=True
            )
    except ValueError as error:  # an architecture that transformers does not read from GGUF
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"--model {model}: transformers cannot read it: {reason:.200}") from error
    return module.eval()


def _show(result: dict[str, Any], theirs: dict[int, Pace], ours: dict[int, Pace]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(f"{result['prompt_tokens']} shared tokens, {result['max_tokens']} each")
    for name in ("llama.cpp tokens/s", "sharegen tokens/s", "ratio"):
        table.add_column(name, justify="right")
    for size, pace in theirs.items():
        own = ours[size].tokens_per_second
        ratio = f"{own / pace.tokens_per_second:,.1f}"
        table.add_row(f"{size} sequences", f"{pace.tokens_per_second:,.0f}", f"{own:,.0f}", ratio)
    Console(file=sys.stderr, highlight=False).print(table)
