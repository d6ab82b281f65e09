from __future__ import annotations

import pytest

from sharegen.common import confined
from sharegen.workload import template
from sharegen.workload.template import Overrun, RenderError


def test_keeps_every_newline() -> None:
    assert template.render("prompt", "Q: {{ q }}\n\n", {"q": "a\n"}) == "Q: a\n\n\n"


def test_does_not_escape_for_html() -> None:
    assert template.render("prompt", "{{ q }}", {"q": "a < b & {{ c }}"}) == "a < b & {{ c }}"


def test_names() -> None:
    assert template.names("{{ a }} {% for x in b %}{{ x }}{% endfor %}") == {"a", "b"}


def test_missing_field_names_template_field_and_fields() -> None:
    with pytest.raises(RenderError, match=r"'prompt' uses the field 'qestion'.*it has a, b"):
        template.render("prompt", "{{ a }} {{ qestion }}", {"a": 1, "b": 2})
    with pytest.raises(RenderError, match="it has none"):
        template.render("prompt", "{{ q }}", {})


def test_a_guarded_field_may_be_missing() -> None:
    text = "{% if hint is defined %}Hint: {{ hint }}{% endif %}{{ q }}"
    assert template.render("prompt", text, {"q": 1}) == "1"


@pytest.mark.parametrize(
    "text",
    [
        "{{ q.__class__.__mro__[1].__subclasses__() }}",
        "{{ q.append(3) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_the_sandbox_holds(text: str) -> None:
    with pytest.raises(RenderError):
        template.render("prompt", text, {"q": [1]})


@pytest.mark.parametrize("text", ["{{ 1 / 0 }}", "{{ q + 1 }}", "{{ q.x }}"])
def test_what_fails_names_the_template(text: str) -> None:
    with pytest.raises(RenderError, match="'prompt'"):
        template.render("prompt", text, {"q": "a"})


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(RenderError, match=r"'prompt' gives no text: '\\ud83d' is half"):
        template.render("prompt", "{{ q }}", {"q": "a \ud83d"})


def test_check() -> None:
    assert template.check("{{ a }}") == "{{ a }}"
    for text in ("{% if %}", "{{ q | nofilter }}"):
        with pytest.raises(ValueError, match="not a template"):
            template.check(text)


def test_fields_alone_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "call", None)
    text = "Q: {{ q }}\n{#- not said -#}\n{{- a -}}\n"
    assert template.check(text) == text and template.names(text) == {"q", "a"}
    assert template.render("prompt", text, {"q": 1.5, "a": "b", "c": []}) == "Q: 1.5b"


@pytest.mark.parametrize("text", ["{{ range }}", "{{ self }}", "{{ dict }}"])
def test_names_of_jinja_s_own_are_no_text(text: str) -> None:
    with pytest.raises(RenderError, match="that is not text"):
        template.render("prompt", text, {})
    if "self" not in text:
        assert template.render("prompt", text, {text.strip("{} "): "mine"}) == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{{ " + "1+" * 20_000 + "1 }}",
        "{% for a in q %}" * 30 + "{% endfor %}" * 30,
        "{% if q %}" * 200 + "{% endif %}" * 200,
        "{{ " + "9" * 6000 + " }}",
        "x" * (template.MAX_SOURCE + 1),
    ],
    ids=["brackets", "signs", "sum", "loops", "branches", "digits", "size"],
)
def test_a_template_that_goes_too_far_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a template: .{0,230}$"):
        template.check(text)


def test_constants_are_bounded_too(short: None) -> None:
    with pytest.raises(ValueError, match=r"compiling it takes more than 0\.3 s"):
        template.check("{{ 9**(9**9) }}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "0.3 s"),
        ("{{ 'x' * (n * n) }}", "256 MiB"),
    ],
)
def test_a_rendering_that_takes_too_much_is_told_apart(short: None, text: str, why: str) -> None:
    with pytest.raises(Overrun, match=f"the template 'prompt' takes more than {why}"):
        template.render("prompt", text, {"n": 10**6})
    assert template.render("prompt", "{{ 1 + n }}", {"n": 1}) == "2"


@pytest.mark.parametrize(
    "text", ["{% for a in range(90000) %}{{ q }}{% endfor %}", "{{ q }}" * 20_000]
)
@pytest.mark.turn(2)
def test_more_text_than_any_prompt_is_refused(text: str) -> None:
    with pytest.raises(RenderError, match="'prompt' gives more than 16,777,216 characters"):
        template.render("prompt", text, {"q": "x" * 1000})


def test_a_template_of_no_end_is_one_line() -> None:
    text = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    with pytest.raises(RenderError, match="'prompt' fails: it is nested too deeply"):
        template.render("prompt", text, {})
