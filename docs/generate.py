"""Writes the pages that say what the code says: commands, recipe keys, the Python API.

    python docs/generate.py

tests/test_docs.py compares them with what this would write.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import typer
from pydantic import BaseModel

from sharegen.cli import commands_named
from sharegen.common import vllm_names
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.request import BeamSearchParams, SamplingParams
from sharegen.llm import LLM
from sharegen.outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Logprob,
    RequestOutput,
)
from sharegen.workload.configuration import Machine
from sharegen.workload.recipe import Job

FOLDER = Path(__file__).parent
SCHEMA = "recipe.schema.json"  # a link to the file that the package has

_VLLM = """# vLLM's names

A script for vLLM's `LLM` runs with `from sharegen import LLM, SamplingParams` where the tables
below say "the same". An argument that is not here is a `TypeError`, a method or a field of outputs
an `AttributeError`, in one line that says what to use; nothing is taken and ignored, and nothing by
two names at once. The names are those of recent versions of vLLM.
[A program that imports vllm](../guides/evaluation-harness.md) runs unchanged through
`python -m sharegen.as_vllm`.

Under the same name these differ:

- `LLM(dtype=)`: "auto" is float32 on a CPU. `quantization` makes weights FP8 or is left out;
  checkpoints that are quantised are read as they are. `kv_cache_dtype` is "auto" or "fp8", which
  keeps in FP8 what one sample alone reads.
- `gpu_memory_utilization`: by default all of a GPU that is free is used, not nine tenths. On a
  CPU it is refused: give `kv_cache_memory`. `max_model_len` may not exceed the model's context.
- `swap_space`: by default 0, not 4 GiB for each GPU; on a CPU the same memory serves better as KV
  cache. Where the machine has too little, samples compute their KV again, and a line says so.
- `LLM(seed=)`: every call draws anew from the stream that the seed begins, each prompt by its place
  in the call. `SamplingParams(seed=)` draws the same at every call: a result depends on the seed,
  the prompt and, where a call has equal prompts, on which of these it is. The place in the call
  plays no part, and nothing else that runs. vLLM gives equal prompts with one seed equal results.
- `SamplingParams` cannot be changed: `dataclasses.replace(params, n=4)` makes others. They are
  given as such, not as a dict.
- `SamplingParams()` is the default of every call: the model's generation_config gives EOS tokens
  alone. An `eos_token` of the tokenizer that the model's configs do not name ends no sample, as in
  transformers' `generate()`; a line says so when the model is loaded.
- `logit_bias` takes -inf, which bars a token; `stop` finds special tokens by their name.
- `max_tokens=None` is all that the context has room for after the prompt. Nothing is reserved for
  it: a sample fails where it gets to the end of the KV cache, and not before.
- A conversation that ends with the assistant is refused unless `continue_final_message` or
  `add_generation_prompt` says how to go on.
- `CompletionOutput.finish_reason` is "stop", "length", or "error" for a sample that failed, which
  `error` explains. `ended_by` tells "eos" from "stop", and "length" from "context".
- `text` is None where there is none (`detokenize=False`, no tokenizer), not "".
- `LLM(logprobs_mode=)` is "raw_logprobs" or "processed_logprobs", which holds for
  `cumulative_logprob`, too; logits are not handed out. Logprob objects are made when `logprobs` is
  first read.
- `logprobs=-1` is refused: ask for as many as the vocabulary has tokens.
- `generate` shows its progress on stderr in a terminal and in a notebook; `use_tqdm` is True,
  False or None.
- Type checkers see every name that is taken, and refuse the others, as the call itself does. A
  misspelt name is refused with the nearest one.

Beside vLLM's there are `stream`, `fork`, `cancel` and `running`: see the [Python API](python.md).
"""

_COMMANDS = """# Commands

Every command as its `--help` says it. Data goes to stdout, everything else to stderr.

| exit code | meaning |
|---|---|
| 0 | done; rows that cannot be asked are named and left out, and fail with `--strict` alone |
| 1 | failed: in the data, the model, the memory or the disk; nothing that was written is lost |
| 2 | wrong usage |
| 130 | interrupted; the same command continues |

`--debug` with any command shows the traceback of an error.
"""

_KEYS = """# Recipe keys

Every key of a recipe, with its type and its default. [Recipes](../guides/recipes.md) explains them
by examples. [recipe.schema.json](../recipe.schema.json) is the same as a JSON schema. The section
`machine` is no part of a recipe: flags say it, or `--set machine.KEY=VALUE`.
"""

_PYTHON = """# Python API

Every class that Python programs use, with its methods and their arguments, as `help(LLM)` tells it.
`LLM` and `SamplingParams` are used as in vLLM.

```python
from sharegen import LLM, SamplingParams

with LLM("meta-llama/Llama-3.1-8B") as llm:
    for output in llm.generate(prompts, SamplingParams(n=8, temperature=0.8)):
        print([sample.text for sample in output.outputs])
```
"""

_NEXT = """## Where to go next

"""
_ENDS = {
    "commands": _NEXT
    + """- [First steps](../tutorial/first-steps.md): commands in use.
- [Recipe keys](recipe-keys.md): what `--set` takes.
- [Formats](formats.md): what commands write, and the keys of `--json`.
""",
    "recipe-keys": _NEXT
    + """- [Recipes](../guides/recipes.md): every key by an example.
- [Commands](commands.md): which flags set which keys.
""",
    "python": _NEXT
    + """- [vLLM's names](vllm.md): what differs from vLLM under the same name.
- [Beams and trees](../guides/beams-and-trees.md): `beam_search`, `fork` and `cancel`.
- [Determinism](../explanation/determinism.md): when a script repeats its results.
""",
    "vllm": _NEXT
    + """- [Python API](python.md): every argument of `LLM` and `SamplingParams`.
- [Compared with others](../explanation/compared.md): when to use vLLM.
""",
}


def commands() -> str:
    """The page of all commands."""
    pages = _help("sharegen", typer.main.get_command(commands_named()), None)
    return "\n".join([_COMMANDS, *pages, _ENDS["commands"]])


def _help(name: str, command: Any, above: Any) -> Iterator[str]:
    """The help of a command and of those below it."""
    context = command.context_class(
        command, info_name=name, parent=above, terminal_width=100, max_content_width=100,
        **command.context_settings,
    )  # fmt: skip
    if above is not None:
        yield f"## {context.command_path}\n\n```\n{command.get_help(context).rstrip()}\n```\n"
    for child, below in getattr(command, "commands", {}).items():
        yield from _help(child, below, context)


def keys() -> str:
    """The page of all keys of a recipe."""
    parts = [_KEYS, *_sections("", Job), *_sections("machine", Machine), _ENDS["recipe-keys"]]
    return "\n".join(parts)


def _sections(prefix: str, model: type[BaseModel]) -> Iterator[str]:
    """A table for a section and one for each section in it."""
    title = f"`{prefix}`" if prefix else "A job"
    yield f"## {title}\n\n{_prose(model.__doc__ or '')}\n"
    lines = ["| key | type | default | what it sets |", "|---|---|---|---|"]
    inner: list[tuple[str, type[BaseModel]]] = []
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        dotted = f"{prefix}.{name}" if prefix else name
        declared = schema["properties"][name]
        said = declared["description"].replace("|", "\\|")
        found = _section_in(field.annotation)
        if found is not None:
            inner.append((dotted, found))
            lines.append(f"| `{dotted}` | a section: see below | | {said} |")
            continue
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        lines.append(f"| `{dotted}` | {_type(declared, schema)} | {default} | {said} |")
    yield "\n".join(lines) + "\n"
    for dotted, section in inner:
        yield from _sections(dotted, section)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    for kind in (annotation, *getattr(annotation, "__args__", ())):
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return kind
    return None


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """A JSON schema's type in words."""
    if "anyOf" in field:
        kinds = [_type(kind, schema) for kind in field["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    kind = field.get("type", "anything")
    if kind == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    limits = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above",
              "exclusiveMaximum": "below"}  # fmt: skip
    said = [f"{word} {field[name]:g}" for name, word in limits.items() if name in field]
    words = {"string": "text", "null": "null", "object": "mapping"}
    return ", ".join([words.get(kind, kind), *said])


def schema() -> str:
    """A recipe's file as a JSON schema: a job with holes, and what names it."""
    job = Job.model_json_schema()
    holes = {key: value for key, value in job.items() if key not in ("required", "title")}
    for section in holes["$defs"].values():
        section.pop("required", None)  # a preset or a flag may fill it
    keys = dict(holes["properties"])
    preset = {"type": "object", "properties": keys, "additionalProperties": False}
    holes["properties"] |= {
        "description": {
            "description": "What the recipe is for, in a line.",
            "type": "string",
            "examples": ["Competition mathematics with boxed answers"],
        },
        "default": {
            "description": "The preset that holds without --dataset.",
            "type": "string",
            "examples": ["gsm8k"],
        },
        "presets": {
            "description": "Names of datasets, each with the keys that it sets.",
            "type": "object",
            "examples": [{"gsm8k": {"dataset": {"source": "openai/gsm8k", "config": "main"}}}],
            "additionalProperties": preset,
        },
    }
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of sharegen",
    }
    return json.dumps(head | holes, indent=1, ensure_ascii=False) + "\n"


def python() -> str:
    """The page of the Python API."""
    parts = [_PYTHON]
    for kind in (
        LLM, SamplingParams, StructuredOutputsParams, RequestOutput, CompletionOutput, Logprob,
        BeamSearchParams, BeamSearchOutput, BeamSearchSequence,
    ):  # fmt: skip
        parts.append(f"## {kind.__name__}\n\n{_signature(kind.__name__, kind)}\n")
        parts.append(f"{_prose(kind.__doc__ or '')}\n")
        if is_dataclass(kind):
            continue
        for name, member in vars(kind).items():
            if name.startswith("_") or not member.__doc__:
                continue
            if isinstance(member, property):
                parts.append(f"### {kind.__name__}.{name}\n\n{_prose(member.__doc__)}\n")
            elif inspect.isfunction(member):
                shown = _signature(name, member)
                parts.append(f"### {kind.__name__}.{name}\n\n{shown}\n\n{_prose(member.__doc__)}\n")
    parts.append(_ENDS["python"])
    return "\n".join(parts)


def _signature(name: str, member: Any) -> str:
    found = inspect.signature(member)
    values = [value for value in found.parameters.values() if value.name != "self"]
    shown = [_parameter(value) for value in values]
    keywords = [value.kind is inspect.Parameter.KEYWORD_ONLY for value in values]
    if True in keywords:
        shown.insert(keywords.index(True), "*")
    is_class = inspect.isclass(member) or found.return_annotation is inspect.Signature.empty
    arrow = "" if is_class else f" -> {found.return_annotation}"
    text = f"{name}({', '.join(shown)}){arrow}"
    if len(text) > 90:
        text = f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){arrow}"
    return f"```python\n{text}\n```"


def _parameter(value: inspect.Parameter) -> str:
    empty = inspect.Parameter.empty
    default = "" if value.default is empty else f" = {value.default!r}"
    stars = "**" if value.kind is inspect.Parameter.VAR_KEYWORD else ""
    kind = value.annotation
    if not isinstance(kind, str):
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        kind = " | ".join(map(inspect.formatannotation, kinds))
        kind = re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", kind).replace("NoneType", "None")
    return f"{stars}{value.name}: {kind}{default}"


def _prose(docstring: str) -> str:
    """A docstring as Markdown: every name that it explains begins a paragraph, as code."""
    out: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        is_code = line.startswith("    ") and (not out or not out[-1] or out[-1].startswith("    "))
        names, colon, said = line.partition(": ")
        if not is_code and colon and names.replace(", ", "").isidentifier():
            if out and out[-1]:
                out.append("")
            line = ", ".join(f"`{name}`" for name in names.split(", ")) + f": {said}"
        out.append(line if is_code else line.strip())
    return "\n".join(out)


def vllm() -> str:
    """The page of vLLM's names."""
    names = json.loads((FOLDER / "vllm_names.json").read_text(encoding="utf-8"))
    methods = [name for name, member in vars(LLM).items() if inspect.isfunction(member)]
    sections: list[tuple[str, Collection[str], Mapping[str, str]]] = [
        ("LLM", _arguments(LLM), vllm_names.LLM_NOT_HERE | _other_names()),
        ("LLM's methods", methods, vllm_names.METHODS_NOT_HERE),
        (
            "generate, chat",
            {*_arguments(LLM.generate), *_arguments(LLM.chat)},
            vllm_names.CALL_NOT_HERE,
        ),
        ("SamplingParams", _arguments(SamplingParams), vllm_names.SAMPLING_NOT_HERE),
        (
            "StructuredOutputsParams",
            _arguments(StructuredOutputsParams),
            vllm_names.STRUCTURED_NOT_HERE,
        ),
        ("RequestOutput", _fields(RequestOutput), vllm_names.OUTPUT_NOT_HERE),
        ("CompletionOutput", _fields(CompletionOutput), vllm_names.OUTPUT_NOT_HERE),
        ("Logprob", _fields(Logprob), {}),
        ("BeamSearchParams", _arguments(BeamSearchParams), vllm_names.BEAM_NOT_HERE),
        ("BeamSearchSequence", _fields(BeamSearchSequence), vllm_names.BEAM_NOT_HERE),
    ]
    parts = [_VLLM]
    for title, own, others in sections:
        same = [f"`{name}`" for name in names[title] if name in own]
        parts.append(f"## {title}\n\nThe same: {', '.join(same)}.\n")
        rows = [f"| `{name}` | {others[name]} |" for name in names[title] if name not in own]
        if rows:
            parts.append("\n".join(["| vLLM | sharegen |", "|---|---|", *rows]) + "\n")
    parts.append(_ENDS["vllm"])
    return "\n".join(parts)


def _arguments(member: Any) -> list[str]:
    return list(inspect.signature(member).parameters)


def _fields(kind: Any) -> list[str]:
    made = [name for name, member in vars(kind).items() if isinstance(member, property)]
    return [each.name for each in fields(kind)] + made


def _other_names() -> dict[str, str]:
    """LLM's arguments that are taken under vLLM's name, all values or one."""
    found = {name: f"the same as `{own}`" for name, own in vllm_names.ALIASES.items()}
    return found | {
        name: f"`{value!r}` alone: {instead}"
        for name, (value, instead) in vllm_names.AS_ALWAYS.items()
    }


PAGES = {
    "reference/commands.md": commands,
    "reference/recipe-keys.md": keys,
    SCHEMA: schema,
    "reference/python.md": python,
    "reference/vllm.md": vllm,
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
