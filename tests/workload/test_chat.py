from __future__ import annotations

import inspect

import pytest
from transformers import PreTrainedTokenizerBase

from sharegen.errors import ModelError
from sharegen.workload.chat import chat_text
from sharegen.workload.conversation import ChatOptions, reserved
from tests.tiny import tiny_tokenizer

TURNS = [{"role": "user", "content": "Hé \ud83d\ude00"}, {"role": "assistant", "content": "7"}]


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages -%}\n  {{ m | tojson }}\n{% endfor %}{{ eos_token }}{{ pad_token }}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ add_generation_prompt }}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% set ns.n = 3 %}{{ ns.n }}{{ strftime_now('%Y') }}",
        "{{ tools is none }}{{ documents is none }}{{ undefined_name }}",
    ],
)
def test_it_is_what_transformers_makes_of_it(template: str | None) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    wanted = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert chat_text(tokenizer, TURNS) == wanted


def test_of_several_templates_the_default_one() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": "a", "tool_use": "b"}
    assert chat_text(tokenizer, TURNS) == "a"
    tokenizer.chat_template = {"one": "a", "two": "b"}
    with pytest.raises(ModelError, match=r"cannot be used: .*no default"):
        chat_text(tokenizer, TURNS)


def test_a_tokenizer_with_a_way_of_its_own_is_asked_itself() -> None:
    tokenizer = tiny_tokenizer()

    class Own(type(tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, turns: list[dict[str, str]], **_: object) -> str:
            return turns[0]["content"]

    tokenizer.__class__ = Own
    assert chat_text(tokenizer, TURNS) == TURNS[0]["content"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ 9**(9**9) }}", "takes more than"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "takes"),
        ("{{ 'x' * 10**10 }}", "takes more than 256 MiB of memory"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
        ("{{ raise_exception('no system') }}", "is refused by .*: no system"),
        ("{% if %}", "is refused by"),
        ("{{ 1 + 'a' }}", "is refused by"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.turn(8)
def test_what_goes_too_far_is_one_line(short: None, template: str, why: str) -> None:
    assert_refused(template, why)


@pytest.mark.slow
def test_more_text_than_any_prompt_is_one_line() -> None:
    """Within the usual seconds: on a busy machine the text alone takes some."""
    assert_refused("{{ 'x' * (2**24 + 1) }}", "gives more than 16,777,216 characters")


def assert_refused(template: str, why: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=why) as error:
        chat_text(tokenizer, TURNS)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def test_names_that_are_transformers_own_are_no_variables_of_a_template() -> None:
    own = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    assert [name for name in own if name != "kwargs" and reserved({name: 1}) is None] == []
    assert reserved({"enable_thinking": False}) is None


def test_tools_choose_the_template_that_is_made_for_them() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": "a", "tool_use": "{{ tools | length }}"}
    assert chat_text(tokenizer, TURNS, ChatOptions(tools=[{"a": 1}])) == "1"


def test_a_developer_is_the_system_to_a_template_that_knows_none() -> None:
    tokenizer = tiny_tokenizer()
    turns = [{"role": "developer", "content": "Be brief."}, *TURNS[:1]]
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }} {% endfor %}"
    assert chat_text(tokenizer, turns) == "system user "
    tokenizer.chat_template += "{# developer #}"
    assert chat_text(tokenizer, turns) == "developer user "
