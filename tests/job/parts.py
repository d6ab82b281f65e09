"""A job that is hard to cut: what a part alone would split elsewhere, and rows that are bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sharegen.workload.configuration import Configuration, resolve

# Below the few-shot, families of prompts with accidental branches of two blocks and of less.
STEMS = [
    "Tom has 3 apples and buys 4 more in the market of the next town over the hill",
    "A box holds 12 eggs and a farmer fills 5 boxes on every day of a long week",
    "Tom has 3 boxes",
]
PROMPTS = [
    f"{STEMS[i % 3]}{' and again' * (i % 4 == 0)}, {i} times {7 * i % 5}. How many?"
    for i in range(13)
]
ROWS: list[dict[str, Any]] = [
    *({"question": question, "answer": f"#### {i}"} for i, question in enumerate(PROMPTS)),
    {"question": "much " * 900, "answer": "#### 1"},  # longer than the context
    {"answer": "no question"},
]


def configure(folder: Path, **sampling: Any) -> Configuration:
    given = {
        "model": str(folder / "model"),
        "few_shot": {"k": 1, "file": str(folder / "examples.jsonl")},
        "sampling": {"samples": 3, "max_tokens": 10, "temperature": 1.0} | sampling,
        "machine": {"device": "cpu"},
        "token_ids": True,
    }
    return resolve("self-consistency", str(folder / "rows.jsonl"), given)


def records(path: Path) -> dict[tuple[str, int | None], dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {(line["problem_id"], line["sample"]): line for line in lines}
    assert len(found) == len(lines)
    return found
