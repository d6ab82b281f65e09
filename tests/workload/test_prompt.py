from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import ModelError
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import load_workload
from sharegen.workload.prompt import Prompt, PromptTemplate, tokenise, tokenizer_fingerprint
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
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content is no text"),
        ("Tom?", "uses the field 'prompt', which the row does not have"),
    ],
)
def test_what_is_no_conversation(turns: Any, said: str) -> None:
    with pytest.raises(RenderError, match=said):
        rendered({"messages": turns})


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
