"""What the runner keeps on the device between steps: parameters, histories, alternatives, rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.execute.padding import graph_rows, padded_rows
from sharegen.engine.sample.sampler import sample
from tests.engine.jobs import (
    GREEDY,
    TIE,
    CheckedEngine,
    forest,
    hope_for_the_best,
    loaded,
    make_engine,
    original,
    requests_of,
    run,
)

PROMPTS = forest(2)


def cramped_engine(name: str = "llama") -> CheckedEngine:
    """Few rows and blocks: sequences are preempted, come back, and move to other rows."""
    engine = make_engine(loaded(name), blocks=44, max_sequences=40)
    hope_for_the_best(engine)
    return engine


def test_rows_of_a_batch() -> None:
    assert [padded_rows(n) for n in (0, 1, 32, 33, 300)] == [32, 32, 32, 64, 320]
    assert [graph_rows(n) for n in (0, 1, 9, 33, 64, 65, 512, 513, 1024)] == [
        8, 8, 16, 64, 64, 128, 512, 640, 1024,
    ]  # fmt: skip
    for rows in (padded_rows, graph_rows):
        sizes = [rows(n) for n in range(2000)]
        assert all(size >= n for n, size in enumerate(sizes))
        assert sizes == sorted(sizes)
        assert all(rows(size) == size for size in sizes)  # a full batch is its own size


@pytest.mark.parametrize("cramped", [False, True])
@pytest.mark.turn(5)
@pytest.mark.slow
def test_repetition_penalty_equals_generate(cramped: bool) -> None:
    """It looks at prompt and output, and so at what a sequence had before it was preempted."""
    params = replace(GREEDY, max_tokens=24, repetition_penalty=1.4)
    engine = cramped_engine() if cramped else make_engine(loaded("llama"))
    ran = run(engine, requests_of(PROMPTS, params, samples=2))
    model = original("llama")
    model.generation_config.eos_token_id = None
    for (key, _), completion in ran.completions.items():
        ids = torch.tensor([PROMPTS[key]])
        expected = model.generate(
            ids, max_new_tokens=24, do_sample=False, repetition_penalty=1.4
        )[0, ids.shape[1] :].tolist()  # fmt: skip
        assert completion.token_ids == expected
    assert not cramped or engine.stats.preemptions > 0


class Numbers:
    """A tokenizer whose texts are token ids."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [int(token) for token in text.split()]

    def decode(self, token_ids: list[int], **_: object) -> str:
        return " ".join(map(str, token_ids))


@pytest.mark.parametrize("cramped", [False, True])
@pytest.mark.turn(10)
def test_all_processors_together_equal_generate(cramped: bool) -> None:
    """Bias, repetition, bad words and min_tokens of every request its own, in one batch."""
    free = run(make_engine(loaded("llama")), requests_of(PROMPTS, GREEDY)).tokens
    engine = cramped_engine() if cramped else make_engine(loaded("llama"))
    engine.runner.state.tokenizer = Numbers()
    model, requests, expected = original("llama"), [], {}
    for key, prompt in enumerate(PROMPTS):
        first, second, third, fourth = free[key, 0][:4]  # what would come, were it not barred
        words, bias = [[first, second], [third]], {fourth: -2.0, 7 + key: 3.0}
        params = replace(
            GREEDY, max_tokens=20, ignore_eos=False, min_tokens=2 + key % 5, logit_bias=bias,
            stop_token_ids=[first, 40], repetition_penalty=1.0 + 0.1 * (key % 4),
            bad_words=[" ".join(map(str, word)) for word in words],
        )  # fmt: skip
        requests.append(Request(key, prompt, params, range(2)))
        whole = model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False,
            eos_token_id=[2, first, 40], min_new_tokens=params.min_tokens, bad_words_ids=words,
            sequence_bias={(token,): value for token, value in bias.items()},
            repetition_penalty=params.repetition_penalty,
        )  # fmt: skip
        expected[key] = whole[0, len(prompt) :].tolist()
    ran = run(engine, requests)
    assert {key: ran.tokens[key, 1] for key in expected} == expected
    assert len({len(tokens) for tokens in expected.values()}) > 2  # some end by a stop, some don't


def penalised_choices(completion: Completion, logits: torch.Tensor) -> list[int]:
    """The greedy tokens under presence and frequency penalties, by their definition."""
    params, tokens = completion.request.params, completion.token_ids
    chosen = []
    for index, row in enumerate(logits):
        seen = torch.bincount(torch.tensor(tokens[:index], dtype=torch.int64), minlength=128)
        row = row - params.frequency_penalty * seen - params.presence_penalty * (seen > 0)
        best = row.topk(2)
        near = (best.values[0] - best.values[1]).item() <= TIE
        chosen.append(tokens[index] if near else int(best.indices[0]))
    return chosen


@torch.no_grad()
def eager_logits(completion: Completion, name: str = "llama") -> torch.Tensor:
    """[outputs, vocab] the logits that each output token was drawn from."""
    prompt = list(completion.request.prompt_token_ids)
    ids = torch.tensor([prompt + completion.token_ids[:-1]])
    return original(name)(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]


@pytest.mark.slow
def test_output_penalties_see_the_whole_output() -> None:
    params = replace(GREEDY, max_tokens=24, presence_penalty=0.7, frequency_penalty=0.4)
    engine = cramped_engine()
    for completion in run(engine, requests_of(PROMPTS, params, samples=2)).completions.values():
        assert completion.token_ids == penalised_choices(completion, eager_logits(completion))
    assert engine.stats.preemptions > 0


@pytest.mark.turn(2)
@pytest.mark.parametrize("cramped", [False, True])
def test_logprobs_are_those_of_the_raw_distribution(cramped: bool) -> None:
    """One entry a token, the chosen one and the likeliest, whatever the temperature."""
    wanted = SamplingParams(temperature=1.6, max_tokens=18, logprobs=3, ignore_eos=True)
    requests = [
        Request(i, prompt, replace(wanted, logprobs=[3, None, 0, 1][i % 4]), range(2))
        for i, prompt in enumerate(PROMPTS)
    ]
    engine = cramped_engine() if cramped else make_engine(loaded("llama"))
    for completion in run(engine, requests).completions.values():
        count = completion.request.params.logprobs
        entries = completion.logprobs
        if count is None:
            assert entries is None
            continue
        assert entries is not None
        assert [entry.token_id for entry in entries] == completion.token_ids
        assert sum(e.logprob for e in entries) == pytest.approx(completion.cumulative_logprob)
        raw = eager_logits(completion).log_softmax(-1)
        for entry, row in zip(entries, raw, strict=True):
            assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=1e-4)
            assert entry.rank == 1 + (row > row[entry.token_id]).sum()
            assert list(entry.top.values()) == pytest.approx(
                row.topk(count).values.tolist(), abs=1e-4
            )
            assert all(
                value == pytest.approx(row[t].item(), abs=1e-4) for t, value in entry.top.items()
            )
    assert not cramped or engine.stats.preemptions > 0


@pytest.mark.slow
def test_each_row_keeps_its_own_parameters() -> None:
    """Greedy, biased and sampled rows join and leave one batch, each as if it were alone."""
    ways = [
        replace(GREEDY, max_tokens=9),
        replace(GREEDY, max_tokens=21, logit_bias={77: 100.0}),
        SamplingParams(temperature=1.3, top_k=5, max_tokens=13, ignore_eos=True),
        SamplingParams(temperature=0.8, top_p=0.6, max_tokens=17, ignore_eos=True, min_p=0.01),
    ]
    requests = [
        Request(i, prompt, ways[i % 4], range(3)) for i, prompt in enumerate(PROMPTS + PROMPTS[:3])
    ]
    together = run(make_engine(loaded("llama"), max_sequences=11), requests).results
    for request in requests:
        alone = run(make_engine(loaded("llama")), [request]).results
        assert {key: together[key][0] for key in alone} == {k: v[0] for k, v in alone.items()}
        if request.params.logit_bias:
            assert all(set(tokens) == {77} for tokens, _, _ in alone.values())


def test_a_row_forgets_who_sat_in_it_before() -> None:
    """Penalties and bias of one request do not reach the next one in the same row."""
    heavy = replace(GREEDY, max_tokens=15, repetition_penalty=5.0, logit_bias={60: 3.0}, logprobs=4)
    plain = replace(GREEDY, max_tokens=15)
    engine = make_engine(loaded("llama"), max_sequences=1)
    mixed = [Request(i, PROMPTS[0], [heavy, plain][i % 2], range(1)) for i in range(4)]
    results = run(engine, mixed).results
    assert results[0, 0] == results[2, 0] != results[1, 0] == results[3, 0]
    alone = run(make_engine(loaded("llama"), max_sequences=1), [mixed[1]])
    assert results[1, 0][0] == alone.tokens[1, 0]


def test_first_tokens_of_more_samples_than_rows() -> None:
    """They are drawn in parts, and each sample has what it has in a batch of its own."""
    params = SamplingParams(max_tokens=2, repetition_penalty=1.2, ignore_eos=True)
    requests = [
        Request(0, PROMPTS[0], params, range(40)),
        Request(1, PROMPTS[1], replace(params, logprobs=3), range(40)),
    ]
    few = run(make_engine(loaded("llama"), max_sequences=3), requests)
    many = run(make_engine(loaded("llama"), max_sequences=64), requests)
    assert few.results == many.results
    for key, completion in few.completions.items():
        assert completion.logprobs == many.completions[key].logprobs


def test_what_penalties_look_back_at_shrinks_with_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is as wide as the tables of the rows that run, and kept nowhere between steps."""
    seen: list[tuple[torch.Size, torch.dtype]] = []

    def spy(*arguments: Any, history: torch.Tensor | None = None, **options: Any) -> Any:
        if history is not None:
            seen.append((history.shape, history.dtype))
        return sample(*arguments, history=history, **options)

    monkeypatch.setattr("sharegen.engine.execute.runner.sample", spy)
    params = replace(GREEDY, temperature=1.0, frequency_penalty=0.5, max_tokens=30)
    engine = make_engine(loaded("llama"), max_sequences=64)
    run(engine, requests_of(forest()[:3], params, 12))
    run(engine, requests_of(forest()[:1], params, 2))
    assert {dtype for _, dtype in seen} == {torch.int32}
    assert seen[0][0][0] == 64 and seen[-1][0][0] == 32  # rows, padded
    assert max(shape[1] for shape, _ in seen) < 40
