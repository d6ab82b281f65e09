"""The time that chat templates see."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from sharegen.workload.chat import chat_text
from sharegen.workload.clock import Clock, like
from sharegen.workload.configuration import resolve
from tests.tiny import tiny_tokenizer

MOMENT = datetime(2026, 11, 26, 23, 59, 58)


@pytest.mark.parametrize(
    ("formats", "fingerprint"),
    [
        ([], {}),
        (["%d %b %Y"], {"clock": "2026-11-26"}),
        (["%Y-%m-%d", "%A, %-d. %B (%j, %U) 100%%"], {"clock": "2026-11-26"}),
        (["%Y-%m-%d", "%H:%M"], {"clock": "2026-11-26T23:59:58"}),
        (["%c"], {"clock": "2026-11-26T23:59:58"}),
        (["%s"], {"clock": "2026-11-26T23:59:58"}),
        (["at %-I %p"], {"clock": "2026-11-26T23:59:58"}),
    ],
)
def test_a_journal_keeps_as_much_of_the_time_as_templates_write(
    formats: list[str], fingerprint: dict[str, str]
) -> None:
    clock = Clock(MOMENT)
    clock.note(formats)
    assert clock.fingerprint == fingerprint
    if fingerprint:
        assert Clock.of(fingerprint["clock"]).moment.date() == MOMENT.date()
        assert like(MOMENT.isoformat(), fingerprint["clock"]) == fingerprint["clock"]
        assert fingerprint["clock"] in str(clock.in_words())
    else:
        assert clock.in_words() is None


def test_a_template_hears_the_clock_and_nothing_else() -> None:
    tokenizer = tiny_tokenizer()
    turns = [{"role": "user", "content": "?"}]
    tokenizer.chat_template = (  # as Llama 3.2 writes it
        "{% if not date_string is defined %}{% if strftime_now is defined %}"
        '{% set date_string = strftime_now("%d %b %Y") %}{% else %}'
        '{% set date_string = "26 Jul 2024" %}{% endif %}{% endif %}Today: {{ date_string }}'
    )
    clock = Clock(MOMENT)
    assert chat_text(tokenizer, turns, clock=clock) == "Today: 26 Nov 2026"
    assert clock.is_read and not clock.tells_time
    tokenizer.chat_template = (
        "{% macro when() %}{{ strftime_now('%H:%M:%S') }}{% endmacro %}{{ when() }}"
    )
    assert chat_text(tokenizer, turns, clock=clock) == "23:59:58"
    assert clock.tells_time
    other = Clock(MOMENT)
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert chat_text(tokenizer, turns, clock=other) == "?" and not other.is_read


@pytest.mark.parametrize(
    ("value", "kept"),
    [("2026-11-26", "2026-11-26"), ("2026-11-26T09:30", "2026-11-26T09:30"), ("soon", None)],
)
def test_a_date_that_is_set(value: Any, kept: str | None) -> None:
    flags = {"model": "a/b", "chat": {"date": value}}
    if kept is None:
        with pytest.raises(Exception, match=r"--set chat\.date is 'soon': neither a date"):
            resolve("prompts", "a/b", flags)
    else:
        job = resolve("prompts", "a/b", flags)
        assert job.chat.date == kept
        assert job.identity == resolve("prompts", "a/b", {"model": "a/b"}).identity
