"""bespokelabs-curator as it comes from PyPI: its offline back end over the stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from sharegen import SamplingParams
from sharegen.as_vllm.llm import LLM
from tests.tiny import save_tiny_model

QUESTIONS = [f"How many eggs are in {n} boxes?" for n in range(4)]
PROGRAM = """
import json, sys
import torch, vllm

# It is for GPUs: at the end it waits for one, and a share of a GPU's memory is refused on a CPU.
torch.cuda.synchronize = lambda: None
made = vllm.LLM.__init__
vllm.LLM.__init__ = lambda self, *values, gpu_memory_utilization, **named: made(
    self, *values, **named
)

from bespokelabs import curator

llm = curator.LLM(
    model_name=sys.argv[1], backend="vllm", generation_params={"temperature": 0.0},
    backend_params={"max_tokens": 12, "min_tokens": 1, "max_model_length": 512, "dtype": "float32"},
)
found = llm(json.loads(sys.argv[2]))
print(json.dumps([row["response"] for row in getattr(found, "dataset", found)]))
"""


@pytest.mark.slow
@pytest.mark.turn(2)
@pytest.mark.skipif(find_spec("bespokelabs") is None, reason="needs bespokelabs-curator")
def test_its_answers_are_those_of_llm(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny")
    (tmp_path / "program.py").write_text(PROGRAM)
    own = {"CURATOR_CACHE_DIR": str(tmp_path / "cache"), "TELEMETRY_ENABLED": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "sharegen.as_vllm", "program.py", str(model), json.dumps(QUESTIONS)],
        cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    with LLM(model, max_model_len=512, dtype="float32") as llm:
        tokenizer = llm.get_tokenizer()
        chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
        prompts = [
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in chats
        ]
        params = SamplingParams(temperature=0, max_tokens=12, min_tokens=1)
        want = [each.outputs[0].text for each in llm.generate(prompts, params)]
    assert json.loads(done.stdout.splitlines()[-1]) == want
