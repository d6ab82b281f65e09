"""What a journal is converted to, by name."""

from __future__ import annotations

from typing import Literal

SampleFormat = Literal["sharegen", "human-eval", "bigcode", "monkeys"]
"""Formats of samples that are read, too."""

Format = Literal[
    "sharegen", "sft", "messages", "openai", "parquet", "human-eval", "bigcode", "monkeys"
]
"""All that a journal is converted to."""
