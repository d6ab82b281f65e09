"""Text from outside at a terminal: nothing in it is obeyed, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text

from sharegen.common.printable import has_signs, in_ascii, printable, visible

TEXTS = st.text() | st.text(alphabet="[]\\/:ab@#=\x1b")


@given(TEXTS)
def test_nothing_hidden_is_left(text: str) -> None:
    shown = printable(text)
    assert all(letter.isprintable() or letter in "\t\n" or ord(letter) > 0x9F for letter in shown)
    shown.encode()


def test_hidden_characters_are_spelled() -> None:
    assert printable("a\x1b[31m\r\x07\u202eb\ud800\tc\n") == (
        "a\\x1b[31m\\r\\x07\\u202eb\\ud800\tc\n"
    )


@given(TEXTS)
@example("[/x]")
@example(":smile:")
@example("\\[ x \\]")
@example("a\\\\\\")
def test_markup_stands_for_itself(text: str) -> None:
    marked = f"{visible(text)}[dim]{visible(text)}[/] z"
    assert Text.from_markup(marked).plain == 2 * printable(text) + " z"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no such encoding"])
def test_encodings_without_the_signs(encoding: str) -> None:
    assert not has_signs(encoding)
    assert has_signs("utf-8") and has_signs(None)
    said = in_ascii("├── a · b … 9 █ 1.5 µs ✓ é")
    assert said == "+-- a - b ... 9 # 1.5 us + é"
