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

from sharegen.common.parameters.data import (
    ChatParameters,
    DatasetParameters,
    FewShotParameters,
    KeepParameters,
)
from sharegen.common.parameters.parameter import Parameter
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
    """A document made for the job, with facts in it that are asked for."""

    words: Annotated[
        int,
        Parameter("About how many words the document has.", ge=1, le=_MAX_WORDS, examples=(4000,)),
    ] = 16000
    questions: Annotated[int, Parameter("How many facts are asked for.", ge=1, examples=(256,))] = (
        64
    )
    examples: Annotated[
        int,
        Parameter("How many facts there are for the few-shot examples.", ge=0, examples=(2,)),
    ] = 5
    seed: Annotated[int, Parameter("Random seed of the document.", examples=(1,))] = 0


class Dataset(Strict, DatasetParameters):  # type: ignore[misc]
    """Where the rows come from and what they mean."""

    source: Place | None = None
    document: Place | None = None
    revision: Revision | None = None
    needles: Annotated[
        Needles | None,
        Parameter(
            "Rows that are made instead: facts in a long document.",
            examples=({"words": 4000, "questions": 256},),
        ),
    ] = None
    requests: Annotated[
        bool,
        Parameter(
            "Whether the rows are the lines of an OpenAI batch file, which bring prompts and "
            "sampling parameters of their own.",
            examples=(True,),
        ),
    ] = False
    rows: Annotated[
        str | None,
        Parameter(
            "The schema of the rows when it takes code to read it: `apps`, `humaneval`, `mbpp` or "
            "`livecodebench`.",
            examples=("humaneval",),
        ),
    ] = None
    id: Annotated[
        Names,
        Parameter(
            "Columns that may hold the problem's id; without any, it is the row's index in the "
            "split.",
            examples=("qid", ["task_id", "name"]),
        ),
    ] = ["problem_id", "task_id", "id"]
    fields: Annotated[
        dict[str, Columns],
        Parameter(
            "Names in the templates, each with its column, or columns to try in order. Every "
            "column is a field by its own name, too.",
            examples=({"question": ["question", "problem"]},),
        ),
    ] = {}
    where: Annotated[
        dict[str, Any],
        Parameter(
            "Only the rows are kept whose fields have these values.",
            examples=({"difficulty": "interview"},),
        ),
    ] = {}


class FewShot(Strict, FewShotParameters):  # type: ignore[misc]
    """Which worked examples stand before every problem: the same for the whole run.

    They are `indices`; else k rows drawn with `seed`; else the first k.
    """

    file: Place | None = None
    split: Annotated[
        str,
        Parameter("Split of the dataset that the examples are from.", examples=("validation",)),
    ] = "train"
    indices: Annotated[
        list[int] | None,
        Parameter(
            "The first k of these rows are the examples, in this order.", examples=([12, 3, 40],)
        ),
    ] = None
    seed: Annotated[
        int | None, Parameter("Random seed with which k rows are drawn.", examples=(7,))
    ] = None
    where: Annotated[
        dict[str, Any],
        Parameter(
            "Only rows whose fields have these values become examples.",
            examples=({"level": "easy"},),
        ),
    ] = {}

    @model_validator(mode="after")
    def _check_choice(self) -> FewShot:
        if self.indices is not None and self.seed is not None:
            raise ValueError("'indices' and 'seed' both choose the rows: set one of them to null")
        return self


class PromptSection(Strict):
    """What is asked: a template, or one in which some fields of the row may stand in any order.

    `prompt: "..."` says the template alone.
    """

    text: Annotated[
        Template,
        Parameter("The template of a prompt.", examples=("Q: {{ question }}\nA:",)),
    ]
    free: Annotated[
        list[NonEmpty],
        Parameter(
            "Fields that are free to move. They stand where the template (`chat.user` of a chat) "
            "writes `{{ fields }}`, in this order unless `--reorder` finds one that shares more.",
            examples=(["review", "product", "rating"],),
        ),
    ] = []
    line: Annotated[
        Template,
        Parameter(
            "The template of a free field, over its `name` and its `value`.",
            examples=("<{{ name }}>{{ value }}</{{ name }}>\n",),
        ),
    ] = "{{ name }}: {{ value }}\n"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | PromptSection):
            raise ValueError("it must be a text, or a mapping with 'text' and 'free'")
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_free(self) -> PromptSection:
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


PromptOrText = Annotated[PromptSection, _OrText()]
"""A prompt, or its template alone."""


def _check_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    taken = conversation.reserved(values)
    if taken is not None:
        raise ValueError(f"{taken!r} cannot be the name of a template variable")
    return values


class Chat(Strict, ChatParameters):  # type: ignore[misc]
    """Prompts as turns of the tokenizer's chat template.

    What follows `stop` counts for rows that bring conversations, too.
    """

    system: Template | None = None
    user: Annotated[
        Template | None,
        Parameter(
            "The template of the user's turn, of a problem and of every example.",
            examples=("{{ question }}",),
        ),
    ] = None
    assistant: Annotated[
        Template | None,
        Parameter(
            "The template of the assistant's turn of an example.", examples=("{{ answer }}",)
        ),
    ] = None
    stop: Annotated[
        list[NonEmpty],
        Parameter(
            "Texts that end a sample of a chat; they replace `sampling.stop` there.",
            examples=(["</answer>"],),
        ),
    ] = []
    template: Annotated[
        Place | None,
        Parameter(
            "A file with a chat template in place of the tokenizer's.",
            examples=("template.jinja",),
        ),
    ] = None
    template_kwargs: Annotated[
        dict[str, Any],
        AfterValidator(_check_kwargs),
        Parameter("Variables of the chat template's own.", examples=({"enable_thinking": False},)),
    ] = {}
    date: Annotated[
        Moment | None,
        Parameter(
            "The date that a template writes; null is the time of the job's first run.",
            examples=("2026-11-26", "2026-11-26T09:30:00"),
        ),
    ] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        Parameter(
            "Schemas of functions, which the template names; a row's `tools` replace them.",
            examples=([{"type": "function", "function": {"name": "add"}}],),
        ),
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        Parameter(
            "Whether an answer begins a turn of its own; with null it does, and a conversation "
            "must not end with the assistant.",
            examples=(True,),
        ),
    ] = None
    continue_final_message: Annotated[
        bool, Parameter("Whether an answer goes on within the last turn.", examples=(True,))
    ] = False


Extract = Literal["number", "choice", "boxed", "text"]
"""Kinds of answers, each of which has a reader (results/answers/reader.py)."""


class Gold(Strict):
    """The known answer of a row. A list of one is what stands in it; any other is no answer."""

    field: Annotated[NonEmpty | None, Parameter("The field that has it.", examples=("answer",))] = (
        None
    )
    template: Annotated[
        Template | None,
        Parameter(
            "A template that makes it of the row's fields.",
            examples=("{{ 'ABCD'[answer] }}",),
        ),
    ] = None
    pattern: Annotated[
        Pattern | None,
        Parameter(
            "A regular expression whose group finds the answer in the text; where it finds none, "
            "or there is no pattern, the answer is all of the text.",
            examples=("#### (.*)",),
        ),
    ] = None
    extract: Annotated[
        Extract | None,
        Parameter(
            "What the text is read by; null is `answer.extract`, as of completions. `boxed` takes "
            "the last box of a solution, or all of a text without one.",
            examples=("boxed",),
        ),
    ] = None

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
    """How to find the answer in a completion: by `extract`, `patterns`, or both."""

    extract: Annotated[
        Extract | None,
        Parameter(
            "The kind of answer, which sharegen reads: a number, the letter of a choice, what "
            "stands in the last `\\boxed{}`, or a text.",
            examples=("number", "choice", "boxed", "text"),
        ),
    ] = None
    patterns: Annotated[
        list[Pattern],
        Field(max_length=20),
        Parameter(
            "Regular expressions of one's own, tried in order before `extract`; the first that "
            "matches decides, and its first group (or all of it) is the answer.",
            examples=(["The answer is (.*)"],),
        ),
    ] = []
    match: Annotated[
        Literal["first", "last"],
        Parameter("Which of a pattern's matches counts.", examples=("first",)),
    ] = "last"
    gold: Annotated[
        Gold | None,
        Parameter("The known answer of a row.", examples=({"field": "answer"},)),
    ] = None
    measure: Annotated[
        str,
        Parameter("What the share of right answers is called.", examples=("retrieval accuracy",)),
    ] = "accuracy"

    @model_validator(mode="after")
    def _check_read(self) -> Answer:
        if self.extract is None and not self.patterns:
            kinds = ", ".join(get_args(Extract))
            raise ValueError(f"say how answers are read: 'extract' ({kinds}) or 'patterns'")
        if self.match == "first" and not self.patterns:
            raise ValueError("'match' chooses among the matches of 'patterns', and there are none")
        return self


class Keep(Strict, KeepParameters):  # type: ignore[misc]
    """What the journal's lines hold of their row, so that they can be read without the dataset."""

    fields: Names = []
