"""How a chat's answer may call functions, in OpenAI's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ToolChoice:
    """kind: auto, where the model writes calls as its chat template tells it, or none; required,
    where the answer is calls and nothing else; named, where it is one of the function `name`.
    """

    kind: Literal["auto", "required", "named"]
    name: str = ""
