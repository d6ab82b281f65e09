"""The part of a completion in which its answer can stand.

A reasoning model thinks first: what it thinks is no answer. A turn may end in a special token, and
what a base model writes after it belongs to nobody's answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THOUGHT = re.compile(
    r"<(?P<close>/?)(?:think|thinking|thought|reasoning|reflection)>"
    r"|(?P<open_mark>◁think▷|\[THINK\]|<\|channel\|>analysis<\|message\|>)"
    r"|(?P<close_mark>◁/think▷|\[/THINK\]|<\|channel\|>final<\|message\|>)"
)
_TURN_END = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|endoftext|end_of_text|end|eos|return|user|assistant"
    r"|system|end_of_turn|END_OF_TURN_TOKEN|EOT|eot|endofassistant)\|>|</s>|<end_of_turn>|<eos>|<EOS>"
    r"|<｜end▁of▁sentence｜>|\[/?INST\]"
)


@dataclass(frozen=True)
class Passage:
    """text: all of the completion; start, end: where the answer's part of it begins and ends."""

    text: str
    start: int
    end: int

    @classmethod
    def of(cls, text: str) -> Passage:
        """The part after the model's thinking, up to the end of its turn; empty if it thinks on."""
        start = 0
        for match in _THOUGHT.finditer(text):
            is_open = match["open_mark"] is not None or match["close"] == ""
            start = len(text) if is_open else match.end()
        end = len(text)
        for match in _TURN_END.finditer(text, start):
            if text[start : match.start()].strip():
                end = match.start()
                break
            start = match.end()
        return cls(text, start, end)

    @property
    def body(self) -> str:
        return self.text[self.start : self.end]
