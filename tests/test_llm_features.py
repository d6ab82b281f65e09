"""The Python API beyond plain sampling: prompt log-probabilities, progress, streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharegen.errors import RequestError
from sharegen.llm import LLM, SamplingParams
from tests.tiny import save_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPTS = ["Question: How many eggs?", "Question: How many apples?", "Tom"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    return LLM(folder, lookahead=8, kv_cache_memory=1 << 22)


def test_prompt_logprobs_are_the_prompts_own(llm: LLM) -> None:
    params = SamplingParams(n=2, max_tokens=3, prompt_logprobs=2)
    for output in llm.generate(PROMPTS, params):
        ids, entries = output.prompt_token_ids, output.prompt_logprobs
        assert entries is not None and entries[0] is None and len(entries) == len(ids)
        assert all(
            entry.token_id == token
            for entry, token in zip(entries[1:], ids[1:], strict=True)
            if entry
        )
        # What the prompt says of its own last token, a shorter prompt's first output says too.
        last = entries[-1]
        assert last is not None and len(last.top) == 2
        shorter = {"prompt_token_ids": ids[:-1]}
        one = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
        [drawn] = llm.generate(shorter, one)[0].outputs
        assert drawn.logprobs is not None
        assert list(drawn.logprobs[0].top) == list(last.top)
        assert list(drawn.logprobs[0].top.values()) == pytest.approx(
            list(last.top.values()), abs=1e-4
        )


def test_no_prompt_logprobs_unless_asked(llm: LLM) -> None:
    assert all(output.prompt_logprobs is None for output in llm.generate(PROMPTS, GREEDY))


def test_progress_on_stderr_where_asked(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("sharegen: 3/3 samples · 3/3 problems · ")


def test_progress_of_a_conversation(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.chat([{"role": "user", "content": "Tom?"}], GREEDY, use_tqdm=True)
    assert "1/1 samples" in capfd.readouterr().err


@pytest.mark.parametrize("wanted", [None, False])
def test_no_progress_away_from_a_terminal(
    llm: LLM, capfd: pytest.CaptureFixture[str], wanted: bool | None
) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=wanted)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("wanted", "shown"), [(None, True), (False, False), (True, True)])
def test_a_terminal_gets_a_bar_by_default(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    wanted: bool | None, shown: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    llm.generate(PROMPTS, GREEDY, use_tqdm=wanted)
    assert ("100%" in capsys.readouterr().err) == shown


# -- streams ------------------------------------------------------------------------------------


def test_a_stream_is_what_generate_returns(llm: LLM) -> None:
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    streamed = dict(llm.stream(iter(PROMPTS), GREEDY))
    assert [streamed[index].token_ids for index in range(3)] == expected
    [(index, one)] = llm.stream(PROMPTS[0], GREEDY)
    assert (index, one.token_ids) == (0, expected[0])


def test_one_sampling_params_a_prompt(llm: LLM) -> None:
    def params() -> Iterator[SamplingParams]:
        for index in range(30):
            yield SamplingParams(n=1 + index % 3, max_tokens=1 + index % 5, ignore_eos=True)

    counts: dict[int, int] = {}
    for index, completion in llm.stream((PROMPTS[i % 3] for i in range(30)), params()):
        counts[index] = counts.get(index, 0) + 1
        assert len(completion.token_ids) == 1 + index % 5
    assert counts == {index: 1 + index % 3 for index in range(30)}


@pytest.mark.parametrize(
    ("prompts", "params", "short"), [(3, 2, "SamplingParams"), (2, 3, "prompts")]
)
def test_params_and_prompts_must_be_as_many(
    llm: LLM, prompts: int, params: int, short: str
) -> None:
    with pytest.raises(RequestError, match=rf"the {short} end after 2: give one"):
        list(llm.stream(iter(PROMPTS[:prompts]), iter([GREEDY] * params)))
    assert llm.engine.pool.num_used == 0


def test_a_stream_reads_no_further_than_its_window(llm: LLM) -> None:
    read = 0

    def prompts() -> Iterator[str]:
        nonlocal read
        for index in range(100):
            read += 1
            yield PROMPTS[index % 3]

    live = llm.engine.scheduler.max_sequences
    done = 0
    for _ in llm.stream(prompts(), GREEDY):
        done += 1
        assert read <= done + live + 8
    assert (read, done) == (100, 100)
