from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.workload.configuration import resolve
from sharegen.workload.problem import Workload, load_workload

RECIPE = """\
dataset: {fields: {q: [question, text], answer: answer}}
prompt: "Q: {{ q }}\\nA:"
example: "Q: {{ q }}\\nA: {{ answer }}\\n\\n"
answer: {patterns: ['\\d+'], gold: {field: answer, pattern: '####\\s*(.+)|^(\\d+)$'}}
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    examples = [{"question": f"e{i}", "answer": f"#### {i}", "kind": i % 2} for i in range(9)]

    def load(rows: list[dict[str, Any]], **flags: Any) -> Workload:
        for name, content in (("test", rows), ("train", examples)):
            text = "".join(json.dumps(row) + "\n" for row in content)
            (tmp_path / f"{name}.jsonl").write_text(text)
        recipe = str(tmp_path / "mine.yaml")
        return load_workload(resolve(recipe, str(tmp_path), {"model": "a/b", **flags}))

    return load
