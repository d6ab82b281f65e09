"""Marks are looked for where they can stand alone, and none is missed by that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharegen.results.answers.marks import _LABEL, _labels
from sharegen.results.answers.passage import _BEGINS, _THOUGHT, _TURN_END

_PIECES = st.sampled_from(
    ["A", "a", "soA", ":", "=", " - ", "\n", " ", "**", "_", "Final answer", "ANSWER", "ans", "(x)",
     "12. ", "> ", "so, ", "Antwort", "Lösung", "答案", "SVAR", "x", "the ", "- ", "A\n",
     "final count", "\u017f", "AN\u017fwer"]
)  # fmt: skip
_MARKS = st.sampled_from(
    ["<", ">", "think", "/", "<think>", "</Thought>", "[THINK]", "◁think▷", "<|im_end|>", "</s>",
     "<<48/2=24>>", "<eos>", "[/INST]", "<｜User｜>", "< 5", "<-", "<.", "<\u017fcratchpad>", "<\n"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=8).map("".join))
def test_labels_are_those_of_a_search_of_every_place(text: str) -> None:
    found = [match.span() for match in _labels(text)]
    assert found == [match.span() for match in _LABEL.finditer(text)]


@given(st.lists(_MARKS, max_size=6).map("".join))
def test_thinking_and_turns_begin_as_is_looked_for(text: str) -> None:
    for pattern in (_THOUGHT, _TURN_END):
        for match in pattern.finditer(text):
            assert _BEGINS.match(text, match.start()), match[0]
