"""evalplus as it comes from PyPI: through the stand-in it writes what its hf back end writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tiny import save_tiny_model

_TASKS, _ASKED = 164, 2  # it takes no file with fewer; and those that are asked
_BACKENDS = {"vllm": ["-m", "sharegen.as_vllm"], "hf": []}


def write_problems(path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(_TASKS):
            task = {
                "task_id": f"HumanEval/{number}",
                "prompt": f'def add_{number}(a, b):\n    """Add {number}, a and b."""\n',
                "entry_point": f"add_{number}",
                "contract": "",
                "canonical_solution": f"    return {number} + a + b\n",
                "base_input": [[1, 2]],
                "plus_input": [[3, 4]],
                "atol": 0,
            }
            file.write(json.dumps(task) + "\n")


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.skipif(
    not (find_spec("evalplus") and find_spec("stop_sequencer")), reason="needs evalplus"
)
def test_codegen_writes_what_its_hf_back_end_writes(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    write_problems(tmp_path / "problems.jsonl")
    environment = os.environ | {
        "HUMANEVAL_OVERRIDE_PATH": str(tmp_path / "problems.jsonl"),
        "HF_HUB_OFFLINE": "1",
    }
    running = [
        subprocess.Popen(
            [sys.executable, *program, "-m", "evalplus.codegen", str(model), "humaneval",
             "--backend", backend, "--greedy", "--dtype", "float32", "--force_base_prompt",
             "--id_range", f"[0,{_ASKED}]", "--root", str(tmp_path / backend)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for backend, program in _BACKENDS.items()
    ]  # fmt: skip
    for process in running:
        _, said = process.communicate(timeout=250)
        assert process.returncode == 0, said[-2000:]
    [ours], [theirs] = (
        sorted((tmp_path / backend / "humaneval").glob("*.raw.jsonl")) for backend in _BACKENDS
    )
    lines = [json.loads(line) for line in ours.read_text().splitlines()]
    assert [line["task_id"] for line in lines] == [f"HumanEval/{n}" for n in range(_ASKED)]
    assert lines == [json.loads(line) for line in theirs.read_text().splitlines()]
