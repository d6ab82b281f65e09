"""Samples in the formats of other tools, read and written. A run writes none of them but our own.

What is for training, and is not read back, is in training.py.

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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote

import yaml

from sharegen.common import json_values
from sharegen.common.files import make_folders, replace_file
from sharegen.common.json_values import JsonError, JsonLimitError
from sharegen.common.log import log
from sharegen.errors import DataError
from sharegen.results.export.kinds import Format, SampleFormat
from sharegen.results.journal.record import read

_LONGEST_NAME = 255 - len(".partial")  # bytes of a file's name while it is written


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


def format_of(path: Path) -> SampleFormat:
    """The format that a file or folder is in. Raises DataError for what is in none."""
    if path.is_dir():
        if any(path.glob("*.yaml")):
            return "monkeys"
        raise DataError(f"{path}: is a folder without .yaml files")
    first: bytes | None = None
    try:
        with path.open("rb") as file:
            for line in file:
                kind = _format_of_line(line)
                if kind is not None:
                    return kind
                first = line if first is None and line.strip() else first
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if first is not None and first.lstrip().startswith(b"["):
        return "bigcode"
    _refuse(path, first or b"")


def _format_of_line(line: bytes) -> SampleFormat | None:
    """The format whose files have such lines."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        fields = json_values.parse(line)
    except JsonError:
        return None
    if {"task_id", "completion"} <= fields.keys():
        return "human-eval"
    return "sharegen" if {"problem_id", "sample"} <= fields.keys() else None


def _refuse(path: Path, first: bytes) -> NoReturn:
    """Say what is wrong with the first line of a file in no format."""
    try:
        json_values.parse(first)
    except JsonError:
        if not first.endswith(b"\n") and first[:1] in (b"", b"{"):  # the one line was cut short
            raise DataError(f"{path}: holds no samples") from None
        raise DataError(f"{path}, line 1: is not JSON") from None
    raise DataError(
        f"{path}: is neither a journal nor samples: its lines have neither 'problem_id' and "
        "'sample' nor 'task_id' and 'completion'"
    )


def read_generations(path: Path, kind: SampleFormat | None = None) -> Iterator[Generation]:
    """The samples in a file of any format; what is none of them is logged by line and left out.

    Raises DataError or JournalError where nothing is a sample.
    """
    kind = kind or format_of(path)
    if kind == "sharegen":
        return _read_journal(path)
    if kind == "human-eval":
        return _samples_in(_read_human_eval(path))
    if kind == "bigcode":
        return _samples_in(_read_bigcode(path))
    return _samples_in(_read_monkeys(path))


def _samples_in(found: Iterator[Generation | DataError]) -> Iterator[Generation]:
    """The samples alone; the errors are logged, or the first of them is raised."""
    faults = []
    number = 0
    for each in found:
        if isinstance(each, DataError):
            faults.append(each)
        else:
            number += 1
            yield each
    if faults and not number:
        raise faults[0]
    for fault in faults:
        log(f"{fault}: it is left out")


def _read_journal(path: Path) -> Iterator[Generation]:
    """What was drawn: a sample that failed has no text, which is not an empty one."""
    failed = 0
    for record in read(path):
        if record.is_drawn:
            assert record.sample is not None
            yield Generation(record.problem_id, record.sample, record.completion)
        failed += record.is_sample and not record.is_drawn
    if failed:
        samples = "sample" if failed == 1 else "samples"
        log(f"{path}: {failed:,} {samples} failed, and cannot be scored: left out")


def _read_human_eval(path: Path) -> Iterator[Generation | DataError]:
    counts: Counter[str] = Counter()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                fields = json_values.parse(line)
            except JsonError as error:
                yield DataError(f"{where}: is not JSON: {error}")
                continue
            task = fields.get("task_id") if isinstance(fields, dict) else None
            text = fields.get("completion") if isinstance(fields, dict) else None
            if not isinstance(text, str):
                yield DataError(f"{where}: has no text 'completion'")
            elif not isinstance(task, str | int):
                yield DataError(f"{where}: has no 'task_id'")
            else:
                yield Generation(str(task), counts[str(task)], text)
            if isinstance(task, str | int):
                counts[str(task)] += 1  # an odd sample keeps its number


def _read_bigcode(path: Path) -> Iterator[Generation | DataError]:
    try:
        text = path.read_bytes().decode()
        problems = json_values.parse(text)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except JsonLimitError:
        problems = list(map(_programs, json_values.elements(text)))
    except ValueError:
        raise DataError(f"{path}: is not JSON") from None
    if not isinstance(problems, list):
        raise DataError(f"{path}: is not a list of lists of programs")
    for index, programs in enumerate(problems):
        where = f"{path}, item {index}"
        if not isinstance(programs, list):
            yield DataError(f"{where}: is not a list of programs")
            continue
        for sample, program in enumerate(programs):
            if isinstance(program, str):
                yield Generation(index, sample, program, is_program=True)
            else:
                yield DataError(f"{where}: is not a list of programs: number {sample} is not text")


def _programs(text: str) -> Any:
    """One item of a list that was too much to be parsed whole; None for the one that is."""
    try:
        return json_values.parse(text)
    except JsonError:
        return None


def _read_monkeys(path: Path) -> Iterator[Generation | DataError]:
    for file in sorted(path.glob("*.yaml")):
        try:
            fields = yaml.safe_load(file.read_text(encoding="utf-8"))
        except OSError as error:
            yield DataError(f"{file}: cannot be read: {error.strerror}")
            continue
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            yield DataError(f"{file}: is not YAML")
            continue
        samples = fields.get("samples") if isinstance(fields, dict) else None
        if not isinstance(samples, list) or not all(isinstance(s, str) for s in samples):
            yield DataError(f"{file}: has no list of texts 'samples'")
            continue
        for sample, text in enumerate(samples):
            yield Generation(
                unquote(file.name.removesuffix(".yaml"), errors="surrogatepass"), sample, text
            )


def default_path(journal: Path, kind: Format) -> Path:
    """Where a converted journal goes: beside it, under a name that says what it is."""
    suffix = {"bigcode": ".json", "monkeys": "", "parquet": ""}.get(kind, ".jsonl")
    return journal.parent / f"{journal.name.removesuffix('.jsonl')}.{kind}{suffix}"


def write_generations(path: Path, kind: Format, problems: Iterable[SampledProblem]) -> None:
    """Write all samples in another tool's format, replacing what was there. Raises DataError."""
    try:
        make_folders(path.parent)
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
                name = f"{quote(problem.problem_id, safe='', errors='surrogatepass')}.yaml"
                if len(name) > _LONGEST_NAME:
                    log(f"problem {name[:40]}…: its id is too long for a file: it is left out")
                else:
                    _write_monkeys(path / name, problem)
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
