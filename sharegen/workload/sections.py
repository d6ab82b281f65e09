"""The sections of a recipe, bar the sampling: rows, examples, prompt, chat, answer."""

# ruff: noqa: RUF012 (pydantic copies defaults; ruff does not see its models behind Strict)

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sharegen.workload import conversation
from sharegen.workload.validation import Strict
from sharegen.workload.values import (
    Columns,
    Moment,
    Names,
    NonEmpty,
    Pattern,
    Place,
    Revision,
    Template,
)

_MAX_WORDS = 10_000_000  # of a document that is made: more than any context holds


class Needles(Strict):
    """A document made for the job, with facts planted through it (see needle.py).

    words: of the document, about; questions: facts that are asked for; examples: facts for the
    few-shot examples.
    """

    words: int = Field(default=16000, ge=1, le=_MAX_WORDS)
    questions: int = Field(default=64, ge=1)
    examples: int = Field(default=5, ge=0)
    seed: int = 0


class Dataset(Strict):
    """Where the rows come from and what they mean.

    source: a file, a folder (relative ones lie beside the recipe) or a hub id.
    needles: rows that are made instead. document: a text file that every row has as the field
        `document`.
    config, split: as the `datasets` library names them; a local folder has a file per split.
    revision: branch, tag or commit of a dataset on the hub; null is its main one.
    requests: whether the rows are the lines of an OpenAI batch file, which bring prompts and
        sampling parameters of their own.
    rows: the schema of the rows when it takes code to read it (`apps`, `humaneval`, `mbpp`,
        `livecodebench`).
    id: columns that may hold the problem's id; without any, the row's index in the split.
    fields: name in the templates -> the column, or columns to try in order. Every column is a field
        by its own name, too.
    where: keep only the rows whose field has this value.
    limit: the first so many rows that `where` keeps.
    """

    source: Place | None = None
    needles: Needles | None = None
    document: Place | None = None
    config: str | None = None
    split: str = "test"
    revision: Revision | None = None
    requests: bool = False
    rows: str | None = None
    id: Names = ["problem_id", "task_id", "id"]
    fields: dict[str, Columns] = {}
    where: dict[str, Any] = {}
    limit: int | None = Field(default=None, ge=1)


class FewShot(Strict):
    """Which worked examples stand before every problem: the same for the whole run.

    k: how many.
    split: of the dataset; file: a file of its own instead.
    indices: the first k of these rows, in this order; else seed: k rows drawn with it; else the
    first k.
    """

    k: int = Field(default=0, ge=0)
    split: str = "train"
    file: Place | None = None
    indices: list[int] | None = None
    seed: int | None = None
    where: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_choice(self) -> FewShot:
        if self.indices is not None and self.seed is not None:
            raise ValueError("'indices' and 'seed' both choose the rows: set one of them to null")
        return self


class Prompt(Strict):
    """What is asked: a template, or one in which some fields of the row may stand in any order.

    text: the template; `prompt: "..."` says it alone.
    free: fields that are free to move. They stand where the template (`chat.user` of a chat) writes
        `{{ fields }}`, in this order unless `--reorder` finds one that shares more.
    line: the template of one of them, over its `name` and its `value`.
    """

    text: Template
    free: list[NonEmpty] = []
    line: Template = "{{ name }}: {{ value }}\n"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | Prompt):
            raise ValueError("it must be a text, or a mapping with 'text' and 'free'")
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_free(self) -> Prompt:
        twice = [name for name in self.free if self.free.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} stands twice among the free fields")
        return self

    @model_serializer(mode="wrap")
    def _as_text(self, dumped: SerializerFunctionWrapHandler) -> Any:
        return dumped(self) if self.free else self.text


class _OrText:
    """Tells a section's JSON schema that a text will do."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core_schema)]}


PromptOrText = Annotated[Prompt, _OrText()]
"""A prompt, or its template alone."""


def _check_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    taken = conversation.reserved(values)
    if taken is not None:
        raise ValueError(f"{taken!r} is no variable of the template's own")
    return values


class Chat(Strict):
    """The same prompts as turns of the tokenizer's chat template.

    enabled: whether to use it; system: the system message's template; user, assistant: templates
    of one example's turns (user also of the problem's own); stop: replaces the sampling's stops.
    The others hold for rows that bring conversations, too. template: a file with a chat template in
    place of the tokenizer's. template_kwargs: variables of the template's own, such as
    `enable_thinking`. tools: schemas of functions, which the template writes out; a row's `tools`
    replace them.
    date: what a template that writes the date hears it to be, as 2026-11-26 (or, of one that writes
    the time, 2026-11-26T09:30:00); null is the time of the job's first run.
    add_generation_prompt: whether an answer begins a turn of its own; unless it is said, a
    conversation must not end with the assistant. continue_final_message: whether an answer goes on
    within the last turn.
    """

    enabled: bool = False
    system: Template | None = None
    user: Template | None = None
    assistant: Template | None = None
    stop: list[NonEmpty] = []
    template: Place | None = None
    template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_kwargs)] = {}
    date: Moment | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


Extract = Literal["number", "choice", "boxed", "text"]
"""Kinds of answers, each of which has a reader (results/answers/reader.py)."""


class Gold(Strict):
    """The known answer of a row.

    field: which has it; template: makes it of the row's fields instead, as `{{ 'ABCD'[answer] }}`
    does of a number. A list of one is what stands in it; any other list is no answer.
    pattern: its group finds the answer there; where it finds none, or there is no pattern, it is
    all of the text. extract: what that is read by; null is `answer.extract`, as of completions:
    `boxed` takes the last box of a solution, or all of a text without one.
    """

    field: NonEmpty | None = None
    template: Template | None = None
    pattern: Pattern | None = None
    extract: Extract | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_section(cls, value: Any) -> Any:
        if not isinstance(value, Mapping | Gold):
            raise ValueError("it must be a mapping with 'field' or 'template'")
        return value

    @model_validator(mode="after")
    def _check_one(self) -> Gold:
        if self.field is None and self.template is None:
            raise ValueError("say where it is: 'field', or 'template', which makes it")
        if self.field is not None and self.template is not None:
            raise ValueError("'field' and 'template' are both given: set one of them to null")
        if self.field is not None and "{{" in self.field:
            raise ValueError("'field' is a column's name; a template stands in 'template'")
        return self


class Answer(Strict):
    """How to find the answer in a completion: by `extract`, `patterns`, or both.

    extract: the kind of answer, which sharegen reads: a number, the letter of a choice, what stands
        in the last `\\boxed{}`, or a text.
    patterns: regular expressions of one's own, tried in order before that; the first that matches
        decides, its first group (or all of it) is the answer.
    match: which of a pattern's matches counts.
    measure: what the share of right answers is called.
    """

    extract: Extract | None = None
    patterns: Annotated[list[Pattern], Field(max_length=20)] = []
    match: Literal["first", "last"] = "last"
    gold: Gold | None = None
    measure: str = "accuracy"

    @model_validator(mode="after")
    def _check_read(self) -> Answer:
        if self.extract is None and not self.patterns:
            kinds = ", ".join(get_args(Extract))
            raise ValueError(f"say how answers are read: 'extract' ({kinds}) or 'patterns'")
        if self.match == "first" and not self.patterns:
            raise ValueError("'match' chooses among the matches of 'patterns', and there are none")
        return self


class Keep(Strict):
    """What the journal's lines hold of their row, so that they can be read without the dataset.

    prompt: whether the text or the turns that were asked; fields: which of the row's fields.
    """

    prompt: bool = False
    fields: Names = []
