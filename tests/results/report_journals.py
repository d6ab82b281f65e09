"""Journals for the report's tests, drawn with a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path

from sharegen.results.journal.run_file import run_file_path
from sharegen.results.scoring.score_file import scores_path

HOSTILE = (
    "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)> \u202e &amp;"
)
LEVELS = ("introductory", "interview", "competition")


def write_lines(path: Path, rows: list[dict]) -> Path:  # type: ignore[type-arg]
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_run_file(journal: Path, **sections: object) -> None:
    path = run_file_path(journal)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"configuration": {}, **sections}))


def sample(problem: str, index: int, text: str = "text", **fields: object) -> dict:  # type: ignore[type-arg]
    line = {"problem_id": problem, "sample": index, "prompt_hash": "h", "completion": text}
    return line | {"num_tokens": 7, "finish_reason": "stop", "cumulative_logprob": -1.5} | fields


def write_maths(path: Path, problems: int = 12, samples: int = 10, seed: int = 0) -> Path:
    """Answers and gold: each problem is right as often as its own skill has it."""
    rng = random.Random(seed)
    rows = []
    for problem in range(problems):
        skill, gold = rng.random(), rng.randint(1000, 5000)
        for index in range(samples):
            answer = gold if rng.random() < skill else rng.randint(1, 9)
            text = HOSTILE if (problem, index) == (1, 0) else f"So {answer}.\n#### {answer}"
            given = None if rng.random() < 0.1 else f"{answer:,}"
            rows.append(
                sample(
                    f"test/{problem}",
                    index,
                    text,
                    num_tokens=rng.randint(1, 64),
                    answer=given,
                    gold=str(gold),
                )
            )
    return write_lines(path, rows)


def write_code(path: Path, problems: int = 9, samples: int = 10, seed: int = 0) -> Path:
    """Programs of an APPS job and, beside them, their scores."""
    rng = random.Random(seed)
    rows, scores = [], []
    for problem in range(problems):
        for index in range(samples):
            passed = rng.random() < 0.5 / (1 + problem % 3)
            rows.append(sample(str(problem), index, f"print({rng.randint(0, 9)})\n"))
            score = {"problem_id": str(problem), "sample": index, "passed": passed}
            score |= {"result": "passed" if passed else "wrong answer", "seconds": 0.1}
            scores.append(score | {"tests_passed": 3, "difficulty": LEVELS[problem % 3]})
    write_run_file(path, configuration={"dataset": {"rows": "apps", "source": "apps"}})
    write_lines(scores_path(path), scores)
    return write_lines(path, rows)
