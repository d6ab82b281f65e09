"""What answers are told by: words that are looked for first leave nothing out."""

from __future__ import annotations

import itertools
import re

import pytest

from sharegen.results.answers import wording

_ALTERNATIVES = re.compile(r"\(\?:([^()]*)\)")


def phrases(pattern: str) -> list[str]:
    """All texts that a pattern of plain alternatives matches, nested once."""
    inner = re.fullmatch(r"\\b\(\?:(.*)\)", pattern)
    assert inner is not None
    depth, parts = 0, [""]
    for letter in inner[1]:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    found = []
    for part in parts:
        pieces = _ALTERNATIVES.split(part)
        choices = [piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces)]
        for words in itertools.product(*choices):
            text = "".join(words).replace("\\ ", " ")
            text = re.sub(r"\[(.)(?:[^]]*)\]", r"\1", text)
            found += [text.replace("-?", ""), text.replace("-?", "-").replace("n?", "n")]
    return [text.replace("an?", "a").replace("?", "") for text in found]


@pytest.mark.parametrize("phrase", phrases(wording._TAKES_BACK.pattern))
def test_whatever_takes_an_answer_back_is_found_by_the_words_that_are_looked_for_first(
    phrase: str,
) -> None:
    text = f"The answer is 5. {phrase.upper()}, it is 6."
    found = wording._TAKES_BACK.search(text)
    assert found is not None, "the test does not know what the pattern means"
    match = wording.taken_back(text)
    assert match is not None and match.span() == found.span()
    assert wording.taken_back(text, match.end()) is None
    assert wording.taken_back(f"Die Lösung ist 5. {phrase}: 6") is not None


def test_a_text_without_such_words_takes_nothing_back() -> None:
    assert wording.taken_back("She has 48/2 = 24 clips left. #### 24") is None
    assert wording.taken_back("Wait, no. She has 24", start=5) is None
