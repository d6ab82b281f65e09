"""The part of a completion in which its answer can stand.

A reasoning model thinks first: what it thinks is no answer. A turn may end in a special token, and
what a model writes after it belongs to nobody's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sharegen.results.answers.numerals import PLAIN

LONGEST = 100_000
"""Characters, the last ones, in which an answer is looked for."""

_THOUGHT = re.compile(
    r"<(?P<close>/?)(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad)>"
    r"|(?P<open_mark>◁think▷|\[THINK\]|<\|channel\|>analysis|<\|begin_of_thought\|>)"
    r"|(?P<close_mark>◁/think▷|\[/THINK\]|<\|channel\|>final(?:<\|message\|>)?"
    r"|<\|end_of_thought\|>)",
    re.IGNORECASE,
)
_TURN_END = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|start_header_id|endoftext|end_of_text|begin_of_text|end"
    r"|eos|return|user|assistant|system|start|end_of_turn|END_OF_TURN_TOKEN|EOT|eot|tool_call"
    r"|tool_calls_begin)\|>|</?s>|<(?:start|end)_of_turn>|<eos>|<EOS>|<｜[^<>｜]{1,30}｜>|\[/?INST\]"
)
_ASIDE = re.compile(
    r"<<[^<>\n]{0,200}>>"  # GSM8K's calculator marks: 48/2=<<48/2=24>>24
    r"|\x1b\[[0-9;]{0,20}[A-Za-z]"  # a terminal's colours
    r"|~~[^~\n]{1,100}~~"  # struck through
)


_BEGINS = re.compile(r"[<\[◁](?:(?<!<)|(?![<\d\s.$-]))")
"""What a mark of thinking or of a turn's end begins with; GSM8K's calculator marks are none."""


class Span(NamedTuple):
    """A part of a passage, in characters."""

    start: int
    end: int


@dataclass(frozen=True)
class Passage:
    """The part of a completion that is read.

    raw: as it was written. offset: of its first character in the completion. is_cut: whether the
    completion's end cuts it off.
    """

    raw: str
    offset: int = 0
    is_cut: bool = False

    @classmethod
    def of(cls, text: str, is_cut: bool = False) -> Passage:
        """What follows the model's thinking, up to the end of its turn; empty if it thinks on."""
        has_any = "<" in text or "[" in text or "◁" in text
        if not has_any or _BEGINS.search(text) is None:  # as most texts have none
            start = max(0, len(text) - LONGEST)
            return cls(text[start:], start, is_cut)
        start = 0
        for match in _THOUGHT.finditer(text):
            is_close = match["close_mark"] is not None or match["close"] == "/"
            start = match.end() if is_close else len(text)
        end = len(text)
        for match in _TURN_END.finditer(text, start):
            if text[start : match.start()].strip():
                end = match.start()
                break
            start = match.end()
        start = max(start, end - LONGEST)
        return cls(text[start:end], start, is_cut and end == len(text))

    @property
    def whole(self) -> Span:
        return Span(0, len(self.raw))

    @cached_property
    def text(self) -> str:
        """Return the same in plain characters, each in its place, without what nobody reads."""
        plain = self.raw if self.raw.isascii() else self.raw.translate(PLAIN)
        if not ("<<" in plain or "~~" in plain or "\x1b" in plain):  # then there is no such part
            return plain
        return _ASIDE.sub(lambda match: " " * len(match[0]), plain)

    def until(self, end: int) -> Passage:
        """The beginning of the passage, up to `end`."""
        return Passage(self.raw[:end], self.offset, self.is_cut and end == len(self.raw))

    def cuts(self, end: int) -> bool:
        """Whether what ends here may have gone on, were the completion not cut off."""
        return self.is_cut and not self.raw[end:].strip(".,:'_/^-–−{\\eE")
