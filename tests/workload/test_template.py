from __future__ import annotations

import pytest

from sharegen.workload import template
from sharegen.workload.template import RenderError


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
