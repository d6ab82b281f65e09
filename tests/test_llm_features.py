"""The Python API beyond plain sampling: prompt log-probabilities, progress, streams."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import RequestError, UsageError
from sharegen.llm import LLM, SamplingParams
from tests.tiny import save_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
PROMPTS = ["Question: How many eggs?", "Question: How many apples?", "Tom"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, lookahead=8, kv_cache_memory=1 << 22)


def test_prompt_logprobs_are_the_prompts_own(llm: LLM) -> None:
    params = SamplingParams(n=2, max_tokens=3, prompt_logprobs=2)
    for output in llm.generate(PROMPTS, params):
        ids, entries = output.prompt_token_ids, output.prompt_logprobs
        assert entries is not None and entries[0] is None and len(entries) == len(ids)
        for entry, token in zip(entries[1:], ids[1:], strict=True):
            assert entry is not None and next(iter(entry)) == token
            assert entry[token].decoded_token == llm.get_tokenizer().decode([token])
            assert {1, 2} <= {of.rank for of in entry.values()} and len(entry) <= 3
        # What the prompt says of its own last token, a shorter prompt's first output says too.
        last = entries[-1]
        one = SamplingParams(temperature=0, max_tokens=1, logprobs=2)
        [drawn] = llm.generate(ids[:-1], one)[0].outputs
        assert last is not None and drawn.logprobs is not None
        of_last = {token: of for token, of in last.items() if of.rank <= 2}
        [first] = drawn.logprobs
        assert [of.rank for of in first.values()] == [1, 2]
        assert {token: of.rank for token, of in first.items()} == {
            token: of.rank for token, of in of_last.items()
        }
        assert [first[token].logprob for token in of_last] == pytest.approx(
            [of.logprob for of in of_last.values()], abs=1e-4
        )


def test_no_prompt_logprobs_unless_asked(llm: LLM) -> None:
    assert all(output.prompt_logprobs is None for output in llm.generate(PROMPTS, GREEDY))


def test_progress_on_stderr_where_asked(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("sharegen: 100% · 3/3 samples · 3/3 problems · ")


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
    assert llm.engine.pool.num_used == llm.engine.scheduler.cache.idle_blocks


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


# -- vLLM's terms -------------------------------------------------------------------------------


def test_prompts_in_every_form(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer("Tom")["input_ids"]
    forms = ["Tom", ids, {"prompt": "Tom"}, {"prompt_token_ids": ids, "prompt": "Tom"}]
    outputs = llm.generate(forms, GREEDY)
    assert [output.prompt for output in outputs] == ["Tom", None, "Tom", "Tom"]
    alone = [llm.generate(form, GREEDY)[0] for form in forms]
    found = {tuple(o.outputs[0].token_ids) for o in (*outputs, *alone)}
    assert len(found) == 1 and all(o.prompt_token_ids == ids for o in (*outputs, *alone))
    streamed = [dict(llm.stream(form, GREEDY))[0].token_ids for form in forms]
    assert {tuple(tokens) for tokens in streamed} == found
    numbers = [int(output.request_id) for output in (*outputs, *alone)]
    assert len(set(numbers)) == len(numbers)


def test_prompt_tokens_that_others_had_computed(folder: Path) -> None:
    """All but what is computed, each for the first prompt that it is in."""
    llm = LLM(folder, kv_cache_memory=1 << 22)
    shared = "Question: A box holds 12 eggs. How many eggs are in 5 boxes?\nAnswer:"
    outputs = llm.generate([shared, shared + " 12 * 5", "Tom", shared], GREEDY)
    computed = llm.engine.stats.prompt_tokens_computed
    whole = [len(output.prompt_token_ids) for output in outputs]
    cached = [output.num_cached_tokens for output in outputs]
    assert sum(whole) - sum(cached) == computed
    assert cached[0] == cached[2] == 0 and cached[3] == whole[0] and cached[1] >= 16


def test_a_bar_of_one_s_own_is_no_way_to_show_progress(llm: LLM) -> None:
    with pytest.raises(TypeError, match="use_tqdm is True, False or None"):
        llm.generate("Tom", GREEDY, use_tqdm=print)  # type: ignore[arg-type]


def test_text_only_where_it_is_wanted(llm: LLM) -> None:
    pad = llm.get_tokenizer().convert_tokens_to_ids("<pad>")
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logit_bias={pad: 1e3})
    [silent] = llm.generate("Tom", replace(params, detokenize=False))[0].outputs
    [plain] = llm.generate("Tom", params)[0].outputs
    [special] = llm.generate("Tom", replace(params, skip_special_tokens=False))[0].outputs
    assert silent.token_ids == plain.token_ids == special.token_ids == [pad] * 3
    assert (silent.text, plain.text, special.text) == (None, "", "<pad>" * 3)
    stopping = replace(params, skip_special_tokens=False, stop="d><p")
    [cut] = llm.generate("Tom", stopping)[0].outputs
    assert (cut.text, cut.token_ids, cut.stop_reason) == ("<pa", [pad] * 2, "d><p")
    with pytest.raises(UsageError, match="stop strings are looked for in text: leave out stop"):
        SamplingParams(stop="x", detokenize=False)


def test_an_eos_shows_only_where_stops_are_included(llm: LLM) -> None:
    eos = llm.get_tokenizer().eos_token_id
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias={eos: 1e3})
    for special, include, text in ((True, False, ""), (True, True, "</s>"), (False, True, "")):
        asked = replace(params, skip_special_tokens=not special, include_stop_str_in_output=include)
        [output] = llm.generate("Tom", asked)[0].outputs
        assert (output.text, output.finish_reason, output.ended_by) == (text, "stop", "eos")
        assert output.stop_reason is None


@pytest.mark.parametrize(
    "bad", [[5] * 5000, [1_000_000], [], {"prompt": "\ud800"}, {"no": 1}], ids=repr
)
def test_a_bad_prompt_is_named_by_its_place(llm: LLM, bad: Any) -> None:
    for call in (
        lambda: llm.generate([PROMPTS[0], "Tom", bad, bad], GREEDY),
        lambda: list(llm.stream([PROMPTS[0], "Tom", bad, bad], GREEDY)),
    ):
        with pytest.raises(RequestError, match=r"^prompt 2: ") as raised:
            call()
        assert "\n" not in str(raised.value)
    if bad != []:  # which is no prompts
        with pytest.raises(RequestError) as raised:
            llm.generate(bad, GREEDY)
        assert "prompt 0" not in str(raised.value)
    assert llm.engine.pool.num_used == llm.engine.scheduler.cache.idle_blocks


def test_a_conversation_is_named_by_its_place(llm: LLM) -> None:
    good = [{"role": "user", "content": "Tom?"}]
    for bad, reason in (
        ([{"role": "user"}], "no turn of a conversation"),
        ([*good, {"role": "assistant", "content": "He"}], "ends with a turn of the assistant"),
        ([], "an empty list"),
        ("Tom?", "no turn of a conversation"),
    ):
        with pytest.raises(RequestError, match=f"^prompt 1: .*{reason}"):
            llm.chat([good, bad], GREEDY)  # type: ignore[list-item]


def test_what_a_chat_template_is_given(llm: LLM) -> None:
    turns = [{"role": "user", "content": "Tom?"}, {"role": "assistant", "content": "He has"}]
    text = "<|user|>Tom?\n<|assistant|>He has"
    tokenizer = llm.get_tokenizer()
    for options, expected in (
        ({"continue_final_message": True}, text),
        ({"add_generation_prompt": True}, text + "\n<|assistant|>"),
        ({"add_generation_prompt": False}, text + "\n"),
    ):
        [output] = llm.chat(turns, GREEDY, **options)  # type: ignore[arg-type]
        assert output.prompt_token_ids == tokenizer(expected)["input_ids"]
    with pytest.raises(UsageError, match="set one of them"):
        llm.chat(turns, add_generation_prompt=True, continue_final_message=True)


def test_a_sample_is_forked_by_its_output(llm: LLM) -> None:
    stream = llm.stream("Tom", replace(GREEDY, max_tokens=2))
    _, first = next(stream)
    fork = llm.fork(first, GREEDY)
    assert [(index, len(output.token_ids)) for index, output in stream] == [(fork, 5)]
    stream = llm.stream("Tom", replace(GREEDY, max_tokens=2))
    _, first = next(stream)
    with pytest.raises(UsageError, match="this output is a copy"):
        llm.fork(copy.copy(first), GREEDY)
    stream.close()  # type: ignore[attr-defined]
