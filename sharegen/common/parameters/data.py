"""Which model is asked what: the parameters of a job that have flags of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sharegen.common.parameters.parameter import Flag, Parameter


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """Which model is asked."""

    model: Annotated[
        str | None,
        Parameter(
            "A folder, a GGUF file or a hub id of the model.",
            flag=Flag("--model", "MODEL"),
            examples=("./model", "Qwen/Qwen3-0.6B"),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckpointParameters:
    """Which checkpoint of a model is read, and what is merged into it."""

    revision: Annotated[
        str | None,
        Parameter(
            "Branch, tag or commit of a model on the hub; null is its main branch.",
            flag=Flag(
                "--revision",
                "REVISION",
                "Branch, tag or commit of a model on the hub.",
                default="the main one",
            ),
            examples=("v1.0",),
        ),
    ] = None
    adapter: Annotated[
        str | None,
        Parameter(
            "A LoRA adapter (folder or hub id), which is merged at load.",
            flag=Flag("--adapter", "ADAPTER", default="none"),
            examples=("./lora",),
        ),
    ] = None
    trust_remote_code: Annotated[
        bool,
        Parameter(
            "Whether code that comes with the model may run. A recipe only tells that its model "
            "needs it; the command line or the call decides.",
            flag=Flag("--trust-remote-code", help="Run code that comes with the model."),
            examples=(True,),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ModelParameters(CheckpointParameters, ModelName):
    """The model of a job."""


@dataclass(frozen=True, kw_only=True)
class DatasetParameters:
    """Which rows are asked."""

    source: Annotated[
        str | None,
        Parameter(
            "A file, a folder (a relative one lies beside the recipe) or a hub id.",
            flag=Flag(
                "--dataset",
                "DATASET",
                "A preset of the recipe, a file (JSONL, JSON, CSV, TSV, Parquet, text), a folder, "
                "a hub id, or - for rows that are piped in.",
            ),
            examples=("openai/gsm8k", "rows.jsonl"),
        ),
    ] = None
    config: Annotated[
        str | None,
        Parameter(
            "Name of the dataset's configuration on the hub.",
            flag=Flag("--dataset-config", "NAME", default="its only one"),
            examples=("main",),
        ),
    ] = None
    revision: Annotated[
        str | None,
        Parameter(
            "Branch, tag or commit of a dataset on the hub; null is its main branch.",
            flag=Flag(
                "--dataset-revision",
                "REVISION",
                "Branch, tag or commit of a dataset on the hub.",
                default="the main one",
            ),
            examples=("refs/convert/parquet",),
        ),
    ] = None
    split: Annotated[
        str,
        Parameter(
            "Dataset split; a local folder has a file for each.",
            flag=Flag("--split", "SPLIT"),
            examples=("validation",),
        ),
    ] = "test"
    limit: Annotated[
        int | None,
        Parameter(
            "The most rows that are asked: the first that `where` keeps.",
            ge=1,
            flag=Flag("--limit", "N", "Ask only the first N rows.", default="all"),
            examples=(100,),
        ),
    ] = None
    document: Annotated[
        str | None,
        Parameter(
            "A text file that every row has as the field `document`.",
            flag=Flag(
                "--document", "FILE", "Text file that the prompts are about.", default="none"
            ),
            examples=("report.txt",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FewShotParameters:
    """Which worked examples stand before every problem."""

    k: Annotated[
        int,
        Parameter(
            "Examples before every problem.", ge=0, flag=Flag("--few-shot", "N"), examples=(8,)
        ),
    ] = 0
    file: Annotated[
        str | None,
        Parameter(
            "A file of examples, in place of a split of the dataset.",
            flag=Flag(
                "--few-shot-file",
                "FILE",
                "Take the examples from this file.",
                default="the dataset's",
            ),
            examples=("examples.jsonl",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChatParameters:
    """Whether prompts are turns of a chat."""

    enabled: Annotated[
        bool,
        Parameter(
            "Whether prompts are turns of the tokenizer's chat template.",
            flag=Flag(
                "--chat/--no-chat", help="Use the tokenizer's chat template.", default="no-chat"
            ),
            examples=(True,),
        ),
    ] = False
    system: Annotated[
        str | None,
        Parameter(
            "The template of the system message.",
            flag=Flag("--system", "TEXT", "System message; implies --chat.", default="none"),
            examples=("You are a careful mathematician.",),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OrderParameters:
    """In which order the rows are asked."""

    reorder: Annotated[
        bool,
        Parameter(
            "Whether rows, and the fields that the recipe declares free to move, are put into the "
            "order that shares the most.",
            flag=Flag(
                "--reorder",
                help="Put rows, and the fields that the recipe declares free to move, into the "
                "order that shares the most.",
            ),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class TokenParameters:
    """Whether the journal has tokens."""

    token_ids: Annotated[
        bool,
        Parameter(
            "Whether the journal keeps the tokens, too.",
            flag=Flag("--token-ids", help="Keep the tokens in the journal.", run_only=True),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class KeepParameters:
    """What the journal's lines have of their row."""

    prompt: Annotated[
        bool,
        Parameter(
            "Whether the journal's lines have the text or the turns that were asked.",
            flag=Flag(
                "--keep-prompt", help="Keep the prompt in the journal's lines.", run_only=True
            ),
            examples=(True,),
        ),
    ] = False
    fields: Annotated[
        list[str],
        Parameter(
            "Fields of the row that the journal's lines have.",
            flag=Flag(
                "--keep",
                "FIELD",
                "Keep this field of the row in the journal's lines (repeatable).",
                run_only=True,
            ),
            examples=(["level", "subject"],),
        ),
    ]
