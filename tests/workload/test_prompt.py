from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError, ModelError, UsageError
from sharegen.workload.configuration import resolve
from sharegen.workload.conversation import ChatOptions
from sharegen.workload.problem import load_workload
from sharegen.workload.prompt import (
    Prompt,
    PromptTemplate,
    tokenise,
    tokenise_each,
    tokenizer_fingerprint,
)
from sharegen.workload.template import RenderError
from tests.tiny import tiny_tokenizer


def text(content: str) -> Prompt:
    return Prompt(content, content)


def test_bos_once_where_the_tokenizer_begins_with_it() -> None:
    tokenizer = tiny_tokenizer()
    bos = tokenizer.bos_token_id
    for content in ("Question: 日本?", "<s>Question: 日本?"):
        (ids,) = tokenise([text(content)], tokenizer)
        assert ids[0] == bos and ids.count(bos) == 1
        assert tokenizer.decode(list(ids[1:])) == "Question: 日本?"


def test_no_bos_where_the_tokenizer_has_none_of_its_own() -> None:
    tokenizer = tiny_tokenizer(bos=False)
    (ids,) = tokenise([text("Question")], tokenizer)
    assert tokenizer.bos_token_id not in ids


def test_an_appended_eos_is_left_out() -> None:
    from tokenizers import processors

    tokenizer = tiny_tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<s>", "</s>")}
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=list(ids.items())
    )
    (own,) = tokenise([text("Tom")], tokenizer)
    assert own[0] == ids["<s>"] and ids["</s>"] not in own


def test_many_prompts_keep_their_order() -> None:
    tokenizer = tiny_tokenizer()
    prompts = [text(f"Question {i}") for i in range(2500)]
    tokens = tokenise(prompts, tokenizer)
    assert [tokenizer.decode(list(ids[1:])) for ids in tokens] == [
        str(prompt) for prompt in prompts
    ]


RECIPE = """\
prompt: "Q: {{ q }}"
example: "Q: {{ q }} A: {{ a }};"
few_shot: {k: 1}
chat: {user: "{{ q }}?", assistant: "{{ a }}!"}
"""


@pytest.fixture
def first_prompt(tmp_path: Path) -> Any:
    for name, row in (("train", {"q": "e", "a": 1}), ("test", {"q": "x", "a": 2})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))

    def first_prompt(recipe: str = RECIPE, **chat: Any) -> Prompt:
        (tmp_path / "mine.yaml").write_text(recipe)
        flags = {"model": "a/b", "chat": chat}
        job = resolve(str(tmp_path / "mine.yaml"), str(tmp_path), flags)
        return load_workload(job).problems[0].prompt

    return first_prompt


def test_examples_stand_in_front_or_where_the_template_says(first_prompt: Any) -> None:
    assert first_prompt().content == "Q: e A: 1;Q: x"
    placed = RECIPE.replace('Q: {{ q }}"\nexample', '[{{ examples }}] Q: {{ q }}"\nexample')
    prompt = first_prompt(placed)
    assert prompt.content == "[Q: e A: 1;] Q: x" and prompt.own == "] Q: x"


def test_chat_has_examples_as_turns(first_prompt: Any) -> None:
    prompt = first_prompt(system="Be brief.")
    assert [(turn["role"], turn["content"]) for turn in prompt.content] == [
        ("system", "Be brief."), ("user", "e?"), ("assistant", "1!"), ("user", "x?"),
    ]  # fmt: skip
    assert prompt.own == "x?"
    tokenizer = tiny_tokenizer()
    (ids,) = tokenise([prompt], tokenizer)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(list(ids)) == (
        "<s><|system|>Be brief.\n<|user|>e?\n<|assistant|>1!\n<|user|>x?\n<|assistant|>"
    )


def test_chat_that_the_template_refuses(first_prompt: Any) -> None:
    prompt = first_prompt(enabled=True)
    with pytest.raises(ModelError, match="no chat template"):
        tokenise([prompt], tiny_tokenizer(chat=False))
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system turns') }}"
    with pytest.raises(ModelError, match="no system turns"):
        tokenise([prompt], tokenizer)


TURNS = [{"role": "user", "content": "Tom?"}]
SYSTEM = {"role": "system", "content": "Be kind."}


def rendered(fields: dict[str, Any], **flags: Any) -> Any:
    job = resolve("prompts", str(Path(__file__)), {"model": "a/b", **flags})
    return PromptTemplate(job, []).render(fields).content


def test_a_list_of_turns_is_a_conversation() -> None:
    assert rendered({"messages": [SYSTEM, *TURNS]}) == [SYSTEM, *TURNS]
    assert rendered({"prompt": TURNS, "messages": "other"}) == TURNS
    assert rendered({"prompt": "Tom", "messages": TURNS}) == "Tom"
    assert rendered({"messages": [{**TURNS[0], "weight": None}]}) == TURNS
    chat = {"chat": {"enabled": True, "system": "Be kind."}}
    assert rendered({"messages": TURNS}, **chat) == [SYSTEM, *TURNS]
    with pytest.raises(RenderError, match="leave out --system"):
        rendered({"messages": [SYSTEM, *TURNS]}, **chat)


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([], "'messages' is an empty list"),
        (["Tom?"], r"messages\[0\] is of type str and no turn"),
        ([*TURNS, {"from": "human", "value": "?"}], r"messages\[1\] is of type dict and no turn"),
        ([{"role": "user", "content": None}], r"messages\[0\].content is of type NoneType"),
        ([{**TURNS[0], "tool_calls": [1]}], r"messages\[0\].tool_calls is of type list"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content is not text"),
        ("Tom?", "uses the field 'prompt', which the row does not have"),
    ],
)
def test_what_is_no_conversation(turns: Any, said: str) -> None:
    with pytest.raises(RenderError, match=said):
        rendered({"messages": turns})


ASKS = [*TURNS, {"role": "assistant", "content": "Yes,"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(fields: dict[str, Any], **flags: Any) -> Prompt:
    job = resolve("prompts", str(Path(__file__)), {"model": "a/b", "chat": flags})
    return PromptTemplate(job, []).render(fields)


def test_a_conversation_that_ends_with_the_assistant_says_how_to_go_on() -> None:
    with pytest.raises(RenderError, match="ends with a turn of the assistant: leave that turn out"):
        chat({"messages": ASKS})
    tokenizer = tiny_tokenizer()

    def text(**flags: Any) -> str:
        (ids,) = tokenise([chat({"messages": ASKS}, **flags)], tokenizer)
        return tokenizer.decode(list(ids))

    before = "<s><|user|>Tom?\n<|assistant|>Yes,"
    assert text(continue_final_message=True) == before
    assert text(add_generation_prompt=True) == before + "\n<|assistant|>"
    assert text(add_generation_prompt=False) == before + "\n"
    with pytest.raises(UsageError, match="set one of them"):
        chat({}, add_generation_prompt=True, continue_final_message=True)


def test_what_goes_with_a_conversation_reaches_the_template_and_is_its_identity() -> None:
    plain = chat({"messages": TURNS})
    assert plain.identity == TURNS  # as ever: journals from before go on
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{{ thinking }} {{ tone }} {% if tools %}{{ tools | tojson }}{% endif %}"
    )
    row = {"messages": TURNS, "chat_template_kwargs": {"tone": "kind"}, "tools": json.dumps([TOOL])}
    told = chat(row, template_kwargs={"thinking": False, "tone": "stern"}, tools=[{"a": 1}])
    (ids,) = tokenise([told], tokenizer)
    assert tokenizer.decode(list(ids)) == f"False kind {json.dumps([TOOL])}"
    assert told.identity == [TURNS, asdict(told.options)] != plain.identity
    other = chat(row, template_kwargs={"thinking": True, "tone": "stern"}, tools=[{"a": 1}])
    assert other.identity != told.identity


def test_calls_of_tools_and_parts_of_text_are_turns() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "1"},
    ]
    said = chat({"messages": turns})
    assert [turn.get("content") for turn in said.content] == ["a\nb", None, "1"]
    assert said.content[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert '"name": "add"' in str(said)


def call_of(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tool_calls": []}, {}),
        ({"annotations": [], "audio": None, "refusal": None, "function_call": None}, {}),
        ({"annotations": [{"type": "url_citation"}], "weight": 0}, {}),
        ({"name": "Ann", "reasoning_content": "hm"}, {"name": "Ann", "reasoning_content": "hm"}),
        ({"toxic": False, "turn": 3, "tags": [1]}, {"toxic": False, "turn": 3, "tags": [1]}),
        ({"content": None}, {"content": ""}),
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, {"content": "No."}),
        ({"content": [{"type": "output_text", "text": "a", "annotations": []}]}, {"content": "a"}),
        ({"content": []}, {"content": ""}),
        ({"tool_calls": [call_of({"a": 1})]}, {"tool_calls": [call_of({"a": 1})]}),
        ({"tool_calls": [call_of('{"a": 1}')]}, {"tool_calls": [call_of({"a": 1})]}),
        ({"tool_calls": [call_of('{"a": "Ro')]}, {"tool_calls": [call_of('{"a": "Ro')]}),
        ({"tool_calls": [call_of("[1]")]}, {"tool_calls": [call_of("[1]")]}),
        ({"tool_calls": [call_of("")]}, {"tool_calls": [call_of({})]}),
        ({"tool_calls": [call_of(None) | {"custom": None}]}, {"tool_calls": [call_of({})]}),
        (
            {"function_call": {"name": "add", "arguments": "{}"}},
            {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}]},
        ),
    ],
)  # fmt: skip
def test_turns_as_openai_has_them(given: dict[str, Any], told: dict[str, Any]) -> None:
    turns = [*TURNS, {"role": "assistant", "content": "Yes.", **given}, *TURNS]
    wanted = {"role": "assistant", "content": "Yes.", **told}
    assert chat({"messages": turns}).content == [*TURNS, wanted, *TURNS]


def test_what_answers_a_call_has_one_role() -> None:
    (turn,) = chat({"messages": [{"role": "function", "name": "add", "content": "1"}]}).content
    assert turn == {"role": "tool", "name": "add", "content": "1"}


def test_what_is_null_in_a_tool_is_not_there_but_for_values() -> None:
    """As in the JSONL that was written of a table of tools."""
    schema = {"type": "object", "properties": {"a": {"default": None, "enum": [None, 1]}}}
    function = {"name": "add", "description": None, "strict": None, "parameters": schema}
    properties = {"b": None, "a": {**schema["properties"]["a"], "items": None}}  # type: ignore[index]
    function["parameters"] = {**schema, "properties": properties, "required": None}
    told = chat({"messages": TURNS, "tools": [{"type": "function", "function": function}]})
    assert told.options.tools == [
        {"type": "function", "function": {"name": "add", "parameters": schema}}
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tools": {"a": 1}}, "tools is not a list of schemas"),
        ({"tools": "[{"}, "tools is not JSON"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs is of type list"),
        ({"chat_template_kwargs": {"tokenize": True}}, "'tokenize' cannot be the name"),
        ({"messages": [{**TURNS[0], "content": [{"type": "image_url"}]}]}, "of type image_url"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "has a 'function' with a 'name'",
        ),
        ({"messages": [{**TURNS[0], "content": [{"type": []}]}]}, r"is of type \[\]: only parts"),
        ({"messages": [{"role": 1, "content": "a"}]}, r"messages\[0\].role is of type int"),
        ({"messages": [{"role": "assistant", "text": "a"}]}, "no turn of a conversation"),
        ({"messages": [{**TURNS[0], "at": {1}}]}, r"messages\[0\].at is of type set: .* no JSON"),
        ({"messages": [{**TURNS[0], "name": "\ud800"}]}, r"messages\[0\].name is not text"),
        ({"messages": [{**TURNS[0], "content": 7}]}, r"messages\[0\].content is of type int"),
    ],
)  # fmt: skip
def test_what_cannot_go_with_a_conversation(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RenderError, match=said):
        chat({"messages": TURNS, **row})


def test_chats_and_texts_in_turn() -> None:
    """Each begins as its kind does, whatever stands beside it."""
    tokenizer = tiny_tokenizer()
    chat, plain = Prompt(TURNS, "Tom?"), text("Tom")
    mixed = tokenise([plain, chat, chat, plain], tokenizer)
    alone = [tokenise([prompt], tokenizer)[0] for prompt in (plain, chat)]
    assert mixed == [alone[0], alone[1], alone[1], alone[0]]
    assert all(ids.count(tokenizer.bos_token_id) == 1 for ids in mixed)


def test_the_fingerprint_sees_what_decides_tokens() -> None:
    same = tokenizer_fingerprint(tiny_tokenizer())
    assert same == tokenizer_fingerprint(tiny_tokenizer())
    others = {
        tokenizer_fingerprint(tiny_tokenizer(bos=False)),
        tokenizer_fingerprint(tiny_tokenizer(chat=False)),
    }
    assert len(others | {same}) == 3


def test_an_example_without_an_answer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "examples.csv").write_text("question,answer\na?,1\nb?,\n")
    (tmp_path / "test.csv").write_text("question\nc?\n")
    few_shot = {"k": 2, "file": str(tmp_path / "examples.csv")}
    for chat in (False, True):
        flags = {"model": "a/b", "few_shot": few_shot, "chat": {"enabled": chat}}
        job = resolve("self-consistency", str(tmp_path / "test.csv"), flags)
        with pytest.raises(DataError, match="few-shot: the field 'answer' of an example is empty"):
            load_workload(job)


def test_half_of_a_character_in_a_tool_costs_no_other_chat() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if tools %}{{ tools[0].a }}{% endif %}{{ messages[0].content }}"
    good = Prompt(TURNS, "Tom?")
    bad = replace(good, options=ChatOptions(tools=[{"a": "\ud800"}]))
    found = list(tokenise_each([good, bad, good], tokenizer))
    assert found[0] == found[2] and isinstance(found[1], ModelError)
    assert str(found[1]).endswith("its text holds half of a character")


@pytest.mark.turn(4)
def test_a_text_that_the_tokenizer_gives_up_on_costs_itself() -> None:
    """Its regular expression needs more steps than the library lets it take."""
    from tokenizers import Regex, pre_tokenizers

    tokenizer = tiny_tokenizer()
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    slow = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([slow, plain])
    prompts = [text(each) for each in ("one", "a" * 60 + "!", "two")]
    one, bad, two = tokenise_each(prompts, tokenizer)
    assert isinstance(bad, ModelError) and "\n" not in str(bad)
    assert str(bad).startswith("the tokenizer gives up: ")
    assert [one, two] == list(tokenise([prompts[0], prompts[2]], tokenizer))
    with pytest.raises(ModelError, match="gives up"):
        tokenise(prompts, tokenizer)
