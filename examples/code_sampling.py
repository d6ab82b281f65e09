"""Programs: many samples for each problem of a local file, run against its tests in the sandbox.

The file has HumanEval's columns. Any file of one's own with these is sampled and scored likewise.

    python examples/code_sampling.py --model MODEL --samples 20

Without a model, the small bundled one shows how it goes; it has never seen a program.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

TINYMATH = files("sharegen.recipes") / "tinymath"

PROBLEMS = [
    {
        "task_id": "own/0",
        "prompt": 'def double(x: int) -> int:\n    """Twice x."""\n',
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(4) == 8 and candidate(0) == 0\n",
        "entry_point": "double",
    },
    {
        "task_id": "own/1",
        "prompt": 'def last(items: list) -> object:\n    """The last of the items."""\n',
        "canonical_solution": "    return items[-1]\n",
        "test": "def check(candidate):\n    assert candidate([1, 2, 3]) == 3\n",
        "entry_point": "last",
    },
]


def sharegen(*arguments: str) -> None:
    """The command, as in a shell."""
    subprocess.run([sys.executable, "-m", "sharegen", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(TINYMATH / "model"))
    parser.add_argument("--samples", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems, journal = Path(folder, "problems.jsonl"), Path(folder, "programs.jsonl")
        problems.write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
        samples = ["--samples", str(given.samples), "--max-tokens", "64"]
        sharegen("code-sample", str(problems), "--model", given.model, *samples,
                 "--output", str(journal))  # fmt: skip
        sharegen("score", str(journal), "--execute")


if __name__ == "__main__":
    main()
