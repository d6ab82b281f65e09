"""Samples in the formats of other tools, read and written. A run writes none of them but our own.

The rules are those of each tool's own reader:

- human-eval: JSONL, `{"task_id", "completion"}` a line; blank lines are skipped, the order of a
  task's lines numbers its samples. openai/human-eval, `human_eval/data.py` (stream_jsonl) and
  `human_eval/evaluation.py` (evaluate_functional_correctness).
- bigcode: one JSON list with a list of whole programs for each problem, in the dataset's order.
  bigcode-project/bigcode-evaluation-harness, `bigcode_eval/evaluator.py` (save_json_files; read
  back by --load_generations_path in `main.py`).
- monkeys: a folder with a YAML file a problem: `prompt`, `question`, `samples` (texts) and
  `gt_answer`; the file's stem is the id. ScalingIntelligence/large_language_monkeys,
  `llmonk/generate/gsm8k.py` writes and `llmonk/evaluate/math_datasets.py` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote

import yaml

from sharegen.errors import DataError
from sharegen.results.record import read
from sharegen.results.run_file import replace_file

Format = Literal["sharegen", "human-eval", "bigcode", "monkeys"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Generation:
    """One sample of one problem.

    problem_id: the id in the dataset; an int is the problem's index there instead.
    is_program: the text is the whole program, not what continues a prompt.
    """

    problem_id: str | int
    sample: int
    text: str
    is_program: bool = False


@dataclass(frozen=True)
class SampledProblem:
    """One problem with its samples in order, as the writers take them.

    completions: what follows the prompt; programs: whole ones.
    """

    problem_id: str
    prompt: str
    question: str
    gt_answer: str
    completions: Sequence[str]
    programs: Sequence[str]


def format_of(path: Path) -> Format:
    """The format that a file or folder is in. Raises DataError for what is in none."""
    if path.is_dir():
        if any(path.glob("*.yaml")):
            return "monkeys"
        raise DataError(f"{path}: is a folder without .yaml files")
    first = _first_value(path)
    if isinstance(first, list):
        return "bigcode"
    if isinstance(first, dict) and {"task_id", "completion"} <= first.keys():
        return "human-eval"
    if isinstance(first, dict) and {"problem_id", "sample"} <= first.keys():
        return "sharegen"
    raise DataError(
        f"{path}: is neither a journal nor samples: its lines have neither 'problem_id' and "
        "'sample' nor 'task_id' and 'completion'"
    )


def _first_value(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            line = next((line for line in file if line.strip()), b"")
        if line.lstrip().startswith(b"["):
            return []
        return json.loads(line)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        if not line.endswith(b"\n") and line[:1] in (b"", b"{"):  # the one line was cut short
            raise DataError(f"{path}: holds no samples") from None
        raise DataError(f"{path}, line 1: is not JSON") from None


def read_generations(path: Path, kind: Format | None = None) -> Iterator[Generation]:
    """The samples in a file of any format. Raises DataError or JournalError with file and line."""
    kind = kind or format_of(path)
    if kind == "sharegen":
        return _read_journal(path)
    if kind == "human-eval":
        return _read_human_eval(path)
    if kind == "bigcode":
        return _read_bigcode(path)
    return _read_monkeys(path)


def _read_journal(path: Path) -> Iterator[Generation]:
    for record in read(path):
        if record.sample is not None:
            yield Generation(record.problem_id, record.sample, record.completion)


def _read_human_eval(path: Path) -> Iterator[Generation]:
    counts: dict[str, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                fields = json.loads(line)
            except (ValueError, RecursionError):
                raise DataError(f"{where}: is not JSON") from None
            if not isinstance(fields, dict) or not isinstance(fields.get("completion"), str):
                raise DataError(f"{where}: has no text 'completion'")
            if not isinstance(fields.get("task_id"), str | int):
                raise DataError(f"{where}: has no 'task_id'")
            task = str(fields["task_id"])
            yield Generation(task, counts.get(task, 0), fields["completion"])
            counts[task] = counts.get(task, 0) + 1


def _read_bigcode(path: Path) -> Iterator[Generation]:
    try:
        problems = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is not JSON") from None
    if not isinstance(problems, list):
        raise DataError(f"{path}: is not a list of lists of programs")
    for index, programs in enumerate(problems):
        if not isinstance(programs, list) or not all(isinstance(p, str) for p in programs):
            raise DataError(f"{path}, item {index}: is not a list of programs")
        for sample, program in enumerate(programs):
            yield Generation(index, sample, program, is_program=True)


def _read_monkeys(path: Path) -> Iterator[Generation]:
    for file in sorted(path.glob("*.yaml")):
        try:
            fields = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror}") from None
        except (UnicodeDecodeError, yaml.YAMLError):
            raise DataError(f"{file}: is not YAML") from None
        samples = fields.get("samples") if isinstance(fields, dict) else None
        if not isinstance(samples, list) or not all(isinstance(s, str) for s in samples):
            raise DataError(f"{file}: has no list of texts 'samples'")
        for sample, text in enumerate(samples):
            yield Generation(unquote(file.stem), sample, text)


def default_path(journal: Path, kind: Format) -> Path:
    """Where a converted journal goes: beside it, under a name that says what it is."""
    suffix = {"bigcode": ".json", "monkeys": ""}.get(kind, ".jsonl")
    return journal.parent / f"{journal.name.removesuffix('.jsonl')}.{kind}{suffix}"


def write_generations(path: Path, kind: Format, problems: Iterable[SampledProblem]) -> None:
    """Write all samples in another tool's format, replacing what was there. Raises DataError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "human-eval":
            lines = (
                json.dumps({"task_id": problem.problem_id, "completion": text}) + "\n"
                for problem in problems
                for text in problem.completions
            )
            replace_file(path, "".join(lines).encode())
        elif kind == "bigcode":
            programs = [list(problem.programs) for problem in problems]
            replace_file(path, json.dumps(programs).encode())
        else:
            assert kind == "monkeys"
            path.mkdir(exist_ok=True)
            for problem in problems:
                _write_monkeys(path / f"{quote(problem.problem_id, safe='')}.yaml", problem)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def _write_monkeys(path: Path, problem: SampledProblem) -> None:
    fields = {
        "prompt": problem.prompt,
        "question": problem.question,
        "samples": list(problem.completions),
        "gt_answer": problem.gt_answer,
    }
    replace_file(path, yaml.safe_dump(fields, allow_unicode=True).encode())
