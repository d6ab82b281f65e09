"""Clients as they come from PyPI, unmodified: each gets what `LLM` gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from sharegen import LLM, SamplingParams
from tests.serve.serving import KV, NAME, Served, serving
from tests.tiny import save_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=12)
QUESTIONS = [f"Question: How many eggs are in {n} boxes?\nAnswer:" for n in range(3, 7)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, kv_cache_memory=KV) as found:
        yield found


def test_curl(served: Served, llm: LLM) -> None:
    body = {"prompt": QUESTIONS[0], "temperature": 0, "max_tokens": 12}
    done = subprocess.run(
        ["curl", "-sS", f"{served.url}/completions", "-H", "Content-Type: application/json",
         "-d", json.dumps(body)],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    [want] = llm.generate(QUESTIONS[:1], GREEDY)
    assert json.loads(done.stdout)["choices"][0]["text"] == want.outputs[0].text


def test_a_body_of_100_mb(served: Served) -> None:
    """It is refused with an answer, and nothing of it is kept."""
    pieces = (b"x" * 1_000_000 for _ in range(100))
    connection = served.connection()
    headers = {"Content-Type": "application/json", "Content-Length": "100000000"}
    connection.request("POST", "/v1/completions", pieces, headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())["error"]["message"]
    connection.close()
    assert answer.status == 413 and "--max-body" in said
    assert served.server.api.counts.total("held") == 0


def instances(kind: str, arguments: list[Any]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, place) for place, each in enumerate(arguments)]


NEEDS_API = pytest.mark.skipif(
    not (find_spec("lm_eval") and find_spec("tenacity")), reason="needs lm-eval[api]"
)


@pytest.mark.slow
@NEEDS_API
def test_lm_eval_local_completions(served: Served, llm: LLM, folder: Path) -> None:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(
        model=NAME, base_url=f"{served.url}/completions", tokenizer=str(folder), num_concurrent=4
    )
    until = {"until": ["\n\n"], "max_gen_toks": 12, "temperature": 0}
    texts = model.generate_until(instances("generate_until", [(q, until) for q in QUESTIONS]))
    params = SamplingParams(temperature=0, max_tokens=12, stop=["\n\n"])
    asked = [{"prompt_token_ids": model.tok_encode(question)} for question in QUESTIONS]
    assert texts == [each.outputs[0].text for each in llm.generate(asked, params)]
    pairs = [(question, f" {n} eggs") for question in QUESTIONS for n in (36, 48)]
    told = model.loglikelihood(instances("loglikelihood", pairs))
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    for (question, answer), (logprob, _) in zip(pairs, told, strict=True):
        ids = model.tok_encode(question + answer)
        [output] = llm.generate([{"prompt_token_ids": ids}], scored)
        start = len(model.tok_encode(question))
        entries = list(zip(output.prompt_token_ids, output.prompt_logprobs, strict=True))[start:]
        assert logprob == pytest.approx(sum(e[token].logprob for token, e in entries), abs=1e-3)


@pytest.mark.slow
@NEEDS_API
def test_lm_eval_local_chat_completions(served: Served, llm: LLM) -> None:
    from lm_eval.models.api_models import JsonChatStr
    from lm_eval.models.openai_completions import LocalChatCompletion

    model = LocalChatCompletion(
        model=NAME, base_url=f"{served.url}/chat/completions", num_concurrent=2
    )
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    until = {"until": ["\n\n"], "max_gen_toks": 12, "temperature": 0}
    asked = [(JsonChatStr(json.dumps(chat)), until) for chat in chats]
    texts = model.generate_until(instances("generate_until", asked))
    params = SamplingParams(temperature=0, max_tokens=12, stop=["\n\n"])
    assert texts == [each.outputs[0].text for each in llm.chat(chats, params)]


TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate

@task
def eggs():
    samples = [Sample(input=f"How many eggs are in {n} boxes?", target="12") for n in range(4)]
    return Task(dataset=samples, solver=[generate()], scorer=includes())
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("inspect_ai") is None, reason="needs inspect-ai")
def test_inspect_ai(served: Served, llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    environment = os.environ | {"SHAREGEN_BASE_URL": served.url, "SHAREGEN_API_KEY": "none"}
    command = [
        sys.executable, "-m", "inspect_ai", "eval", "task.py", "--max-tokens", "12",
        "--model", f"openai-api/sharegen/{NAME}", "--temperature", "0", "--display", "plain",
        "--log-dir", "logs", "--log-format", "json",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    [log] = (tmp_path / "logs").glob("*.json")
    samples = json.loads(log.read_text())["samples"]
    chats = [
        [{"role": "user", "content": f"How many eggs are in {n} boxes?"}]
        for n in range(len(samples))
    ]
    want = [each.outputs[0].text for each in llm.chat(chats, GREEDY)]
    assert [each["output"]["choices"][0]["message"]["content"] for each in samples] == want
