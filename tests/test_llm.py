"""The Python API: what goes in, what comes out in which order, and what is refused."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import sharegen
from sharegen import LLM, BeamSearchParams, SamplingParams
from sharegen import llm as llm_module
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.parallel import opening
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.errors import CapacityError, ModelError, RequestError, UsageError
from tests.engine.tiny_models import make_tiny
from tests.tiny import save_tiny_model, tiny_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=8, ignore_eos=True)
PROMPTS = ["Question: Tom has 3 apples.", "Question: Tom has", "日本 é"]
MEMORY = 1 << 22


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("llm") / "model")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, kv_cache_memory=MEMORY)


@pytest.fixture(scope="module")
def bare() -> Iterator[LLM]:
    """A loaded model, and no tokenizer."""
    llm = LLM(make_tiny("llama"), kv_cache_memory=MEMORY)
    yield llm
    llm.engine.model.release()


# -- what comes out -----------------------------------------------------------------------------


def test_outputs_in_the_order_of_the_prompts(llm: LLM) -> None:
    outputs = llm.generate(PROMPTS, SAMPLED)
    tokenizer = llm.tokenizer
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        assert output.prompt_token_ids == tokenizer(output.prompt)["input_ids"]
        assert [completion.index for completion in output.outputs] == [0, 1, 2]
        for completion in output.outputs:
            assert completion.text == tokenizer.decode(completion.token_ids)
            assert len(completion.token_ids) == 8 and completion.finish_reason == "length"
            assert completion.cumulative_logprob < 0


def test_a_single_prompt_and_default_params(llm: LLM) -> None:
    [output] = llm.generate(PROMPTS[0])
    assert output.prompt == PROMPTS[0] and len(output.outputs) == 1
    assert len(output.outputs[0].token_ids) <= SamplingParams().max_tokens
    [output] = llm.generate(PROMPTS[0], GREEDY)
    [same] = llm.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY)
    assert same.prompt is None
    assert same.outputs[0].token_ids == output.outputs[0].token_ids


def test_no_prompts(llm: LLM) -> None:
    assert llm.generate([]) == []
    assert list(llm.stream([])) == []


def test_texts_and_token_ids_mix(llm: LLM) -> None:
    ids = llm.tokenizer(PROMPTS[1])["input_ids"]
    mixed = llm.generate([PROMPTS[0], {"prompt_token_ids": ids}], GREEDY)
    plain = llm.generate(PROMPTS[:2], GREEDY)
    assert [o.outputs[0].token_ids for o in mixed] == [o.outputs[0].token_ids for o in plain]


def test_equal_prompts_give_different_samples(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.5, max_tokens=20, ignore_eos=True)
    outputs = llm.generate([PROMPTS[0]] * 3, params)
    drawn = {tuple(completion.token_ids) for output in outputs for completion in output.outputs}
    assert len(drawn) == 12


def texts(llm: LLM, params: SamplingParams = SAMPLED) -> list[str | None]:
    return [c.text for output in llm.generate(PROMPTS, params) for c in output.outputs]


def streamed(llm: LLM, params: SamplingParams = SAMPLED) -> dict[tuple[int, int], str | None]:
    return {(index, c.index): c.text for index, c in llm.stream(PROMPTS, params)}


@pytest.mark.slow
def test_the_same_script_gives_the_same_samples(folder: Path) -> None:
    def script(**options: int) -> list[object]:
        llm = LLM(folder, kv_cache_memory=MEMORY, **options)
        chat = llm.chat([{"role": "user", "content": "Tom?"}], SAMPLED)
        return [texts(llm), [c.text for c in chat[0].outputs], streamed(llm), texts(llm)]

    first = script()
    assert script(max_sequences=2) == first
    assert all(ours != theirs for ours, theirs in zip(script(seed=5), first, strict=True))


def test_every_call_draws_anew(folder: Path) -> None:
    llm = LLM(folder, kv_cache_memory=MEMORY)
    drawn = [texts(llm) for _ in range(3)]
    assert not set(drawn[0]) & set(drawn[1]) and not set(drawn[1]) & set(drawn[2])
    assert streamed(llm) != streamed(llm)
    chats = [llm.chat([{"role": "user", "content": "Tom?"}], SAMPLED) for _ in "ab"]
    assert chats[0][0].outputs[0].text != chats[1][0].outputs[0].text


def test_forks_of_another_call_are_drawn_anew(folder: Path) -> None:
    llm = LLM(folder, kv_cache_memory=MEMORY)

    def forked(seed: int | None) -> list[str | None]:
        first = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        stream = llm.stream(PROMPTS[0], first)
        fork = llm.fork(next(stream)[1], replace(SAMPLED, seed=seed))
        return sorted(str(c.text) for index, c in stream if index == fork)

    assert forked(None) != forked(None)
    assert forked(3) == forked(3)


def test_seeds_of_numpys(llm: LLM, folder: Path) -> None:
    first = texts(llm, replace(SAMPLED, seed=4))
    for seed in (np.int64(4), np.int32(4), np.uint32(4), np.uint64(4)):
        assert texts(llm, replace(SAMPLED, seed=seed)) == first  # type: ignore[arg-type]
    first, same = (texts(LLM(folder, kv_cache_memory=MEMORY, seed=s)) for s in (3, np.int64(3)))
    assert first == same


def test_a_seed_repeats(llm: LLM, folder: Path) -> None:
    """Its own whatever was called before; that of the LLM as a whole script does."""
    seeded = replace(SAMPLED, seed=5)
    first = texts(llm, seeded)
    assert texts(llm, seeded) == first
    script = texts(LLM(folder, kv_cache_memory=MEMORY, seed=5))
    assert texts(LLM(folder, kv_cache_memory=MEMORY, seed=5)) == script


def test_a_seeded_result_depends_on_the_prompt_alone(llm: LLM) -> None:
    """Wherever it stands in the call, and whatever stands beside it; equal prompts by count."""
    seeded = replace(SAMPLED, seed=5, max_tokens=6)

    def drawn(prompts: list[str]) -> list[list[list[int]]]:
        outputs = llm.generate(prompts, seeded)
        return [[sample.token_ids for sample in output.outputs] for output in outputs]

    a, b, c = drawn(PROMPTS)
    assert drawn(PROMPTS[::-1]) == [c, b, a]
    assert drawn([PROMPTS[2]]) == [c]
    first, second, third, again = drawn([PROMPTS[1], PROMPTS[0], PROMPTS[1], PROMPTS[1]])
    assert (first, second) == (b, a)
    assert len({repr(each) for each in (first, third, again)}) == 3
    assert drawn([PROMPTS[1]] * 3) == [b, third, again]
    streamed: dict[int, list[list[int]]] = {}
    for index, sample in llm.stream(PROMPTS[::-1], seeded):
        streamed.setdefault(index, []).append(sample.token_ids)
    assert [sorted(streamed[index]) for index in range(3)] == [sorted(x) for x in (c, b, a)]
    other = llm.generate([PROMPTS[0]], replace(seeded, seed=6))
    assert [sample.token_ids for sample in other[0].outputs] != a


def test_forks_of_a_seeded_sample_depend_on_its_prompt_alone(llm: LLM) -> None:
    seeded = replace(SAMPLED, seed=5, n=1, max_tokens=6)

    def forked(prompts: list[str], which: int) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        forks: list[int] = []
        for index, sample in llm.stream(prompts, seeded, keep=True):
            found[index] = sample.token_ids
            if index == which and not forks:
                forks.append(llm.fork(sample, replace(seeded, max_tokens=5)))
        return [found[which], found[forks[0]]]

    assert forked(PROMPTS, 2) == forked([PROMPTS[2]], 0)


def test_greedy_samples_are_computed_once(llm: LLM) -> None:
    before = replace(llm.engine.stats)
    wanted = replace(GREEDY, n=5, logprobs=2)
    outputs = llm.generate(PROMPTS, wanted)
    for output in outputs:
        [tokens] = {tuple(completion.token_ids) for completion in output.outputs}
        assert [completion.index for completion in output.outputs] == [0, 1, 2, 3, 4]
        assert all(len(completion.logprobs or ()) == len(tokens) for completion in output.outputs)
    now = llm.engine.stats
    assert now.generated_tokens - before.generated_tokens == 3 * GREEDY.max_tokens
    assert (now.completions - before.completions, now.copies - before.copies) == (15, 12)
    once = llm.generate(PROMPTS, replace(wanted, n=1))
    assert [o.outputs[0].token_ids for o in once] == [o.outputs[4].token_ids for o in outputs]


def test_one_sampling_params_a_prompt(llm: LLM) -> None:
    params = [
        SamplingParams(n=2, max_tokens=3, ignore_eos=True),
        GREEDY,
        SamplingParams(max_tokens=5, temperature=2.0, ignore_eos=True),
    ]
    outputs = llm.generate(PROMPTS, params)
    shapes = [[len(completion.token_ids) for completion in output.outputs] for output in outputs]
    assert shapes == [[3, 3], [8], [5]]


def test_stop_strings_cut_the_text(llm: LLM) -> None:
    [whole] = llm.generate(
        PROMPTS[0], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    )
    text = whole.outputs[0].text
    assert text is not None
    stop = next(text[i : i + 3] for i in range(5, len(text) - 3) if text[i : i + 3].isascii())
    for include in (False, True):
        params = SamplingParams(
            temperature=0, max_tokens=40, ignore_eos=True, stop=[stop, "never there"],
            include_stop_str_in_output=include,
        )  # fmt: skip
        [cut] = llm.generate(PROMPTS[0], params)
        completion = cut.outputs[0]
        assert completion.text == text[: text.index(stop) + include * len(stop)]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)


def test_a_special_token_as_a_stop_string(llm: LLM) -> None:
    """Text never holds it, for decoding leaves it out."""
    pad = llm.tokenizer.convert_tokens_to_ids("<pad>")
    params = SamplingParams(temperature=0, stop=["<pad>", "never there"], logit_bias={pad: 1e3})
    [whole] = llm.generate(PROMPTS[0], replace(GREEDY, max_tokens=3))[0].outputs
    for include in (False, True):
        late = replace(params, min_tokens=3, include_stop_str_in_output=include)
        [completion] = llm.generate(PROMPTS[0], late)[0].outputs
        assert completion.token_ids == [*whole.token_ids, pad]
        assert completion.text == str(whole.text) + include * "<pad>"
        assert (completion.finish_reason, completion.stop_reason) == ("stop", "<pad>")
    [at_once] = llm.generate(PROMPTS[0], params)[0].outputs
    assert (at_once.token_ids, at_once.text) == ([pad], "")


def test_stream_yields_each_completion_once(llm: LLM) -> None:
    seeded = replace(SAMPLED, seed=0)
    outputs = llm.generate(PROMPTS, seeded)
    streamed = {
        (index, completion.index): completion.token_ids
        for index, completion in llm.stream(iter(PROMPTS), seeded)
    }
    assert streamed == {
        (index, completion.index): completion.token_ids
        for index, output in enumerate(outputs)
        for completion in output.outputs
    }


def test_a_stream_closed_early_leaves_the_engine_free(llm: LLM) -> None:
    stream = llm.stream(PROMPTS * 5, SAMPLED)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.engine.stats.blocks_used == 0
    assert len(llm.generate(PROMPTS, GREEDY)) == 3


def test_a_stream_without_the_samples_that_are_cancelled(llm: LLM) -> None:
    seeded = replace(SAMPLED, seed=0)
    params = [replace(seeded, max_tokens=2), *[seeded] * (len(PROMPTS) - 1)]
    whole = {(i, c.index): c.token_ids for i, c in llm.stream(PROMPTS, params)}
    found: dict[tuple[int, int], list[int]] = {}
    ended: list[int] = []
    for index, completion in llm.stream(PROMPTS, params):
        if not found:
            ended = llm.cancel(1)
        found[index, completion.index] = completion.token_ids
    assert ended and found == {k: v for k, v in whole.items() if k not in {(1, s) for s in ended}}
    assert llm.engine.stats.blocks_used == 0
    with pytest.raises(UsageError, match="no job runs"):
        llm.cancel(0)


@pytest.mark.slow
def test_beam_search_with_stop_strings_as_transformers_does_it(llm: LLM, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    params = BeamSearchParams(beam_width=5, max_tokens=20, stop=["a", "e"], length_penalty=0.5)
    outputs = llm.beam_search(PROMPTS, params)
    ended = set()
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = llm.tokenizer(prompt, return_tensors="pt")["input_ids"]
        found = model.generate(
            ids, max_new_tokens=20, num_beams=5, num_return_sequences=5, length_penalty=0.5,
            stop_strings=["a", "e"], tokenizer=llm.tokenizer, pad_token_id=-1,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        texts = [[token for token in text if token >= 0] for text in found.sequences.tolist()]
        assert [sequence.tokens for sequence in output.sequences] == texts
        scores = [sequence.score for sequence in output.sequences]
        assert scores == pytest.approx(found.sequences_scores.tolist(), rel=1e-6)
        ended |= {sequence.finish_reason for sequence in output.sequences}
    assert "stop" in ended


def test_beam_search(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    outputs = llm.beam_search([*PROMPTS[:2], {"prompt_token_ids": [1, 5, 6]}], params)
    assert [output.prompt for output in outputs] == [*PROMPTS[:2], None]
    for output in outputs:
        assert [s.output.index for s in output.sequences] == [0, 1, 2]
        scores = [s.score for s in output.sequences]
        assert scores == sorted(scores, reverse=True)
        for sequence in output.sequences:
            completion = sequence.output
            assert sequence.tokens == output.prompt_token_ids + completion.token_ids
            assert sequence.text == llm.tokenizer.decode(sequence.tokens, skip_special_tokens=True)
            assert sequence.text.endswith(completion.text)
            assert sequence.cum_logprob == completion.cumulative_logprob
            assert sequence.finish_reason == completion.finish_reason
    mixed = llm.generate(PROMPTS[:2], [params, GREEDY])
    found = [completion.text for completion in mixed[0].outputs]
    assert found == [sequence.output.text for sequence in outputs[0].sequences]
    assert mixed[1].outputs[0].text == llm.generate(PROMPTS[1], GREEDY)[0].outputs[0].text


def test_chat(llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tom?"}]
    [output] = llm.chat(messages, GREEDY)
    text = "<|system|>Be kind.\n<|user|>Tom?\n<|assistant|>"
    ids = llm.tokenizer(text)["input_ids"]
    assert output.prompt_token_ids == ids and ids.count(llm.tokenizer.bos_token_id) == 1
    assert output.prompt == llm.tokenizer.bos_token + text
    both = llm.chat([messages, messages[1:]], GREEDY)
    assert both[0].outputs[0].text == output.outputs[0].text and len(both) == 2


# -- models and tokenizers ----------------------------------------------------------------------


def test_token_ids_need_no_tokenizer(bare: LLM) -> None:
    [output] = bare.generate([{"prompt_token_ids": [5, 6, 7]}], SAMPLED)
    assert all(completion.text is None for completion in output.outputs)
    assert len({tuple(completion.token_ids) for completion in output.outputs}) == 3


def test_a_loaded_model_with_a_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    model = make_tiny("llama")
    llm = LLM(model, tokenizer, kv_cache_memory=MEMORY)
    with pytest.raises(RequestError, match="vocabulary of 128"):
        llm.generate("日本")  # the tokenizer is another model's
    with pytest.raises(ModelError, match="in use already"):
        LLM(model, kv_cache_memory=MEMORY)
    llm.engine.model.release()


def test_a_tokenizer_from_a_folder(folder: Path) -> None:
    llm = LLM(folder, tokenizer=str(folder), kv_cache_memory=MEMORY)
    assert llm.tokenizer.get_vocab() == load_tokenizer(folder).get_vocab()


def test_the_names_at_the_top() -> None:
    assert sharegen.LLM is LLM and sharegen.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="no attribute 'Sampler'"):
        sharegen.Sampler  # noqa: B018


# -- refusals -----------------------------------------------------------------------------------


def test_unknown_fields_are_type_errors(folder: Path) -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="pipeline_parallel_size"):
        LLM(folder, pipeline_parallel_size=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "values",
    [{"n": 0}, {"n": 1.5}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0},
     {"top_p": 3}, {"top_k": -2}, {"max_tokens": 0}, {"stop": [""]}, {"stop": [3]}, {"seed": "x"},
     {"min_tokens": 17}, {"logprobs": -1}, {"repetition_penalty": 0}, {"min_p": 1}, {"n": True},
     {"logit_bias": {"5": 1.0}}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {3: float("nan")}},
     {"logit_bias": {3: float("inf")}}, {"logit_bias": {3: -3.4e38}}, {"logit_bias": [3]},
     {"frequency_penalty": -3e38}, {"temperature": 1e39}, {"stop_token_ids": 3}, {"stop": 3},
     {"stop_token_ids": ["a"]}, {"stop_token_ids": [2**63]}, {"bad_words": [" "]},
     {"bad_words": [1]}, {"stop": ""}, {"bad_words": ""}, {"stop": ["a\ud800"]},
     {"bad_words": ["\ud800"]}],
    ids=str,
)  # fmt: skip
def test_impossible_values(values: dict) -> None:
    [name] = values
    with pytest.raises(UsageError, match=rf"^{name} is .*: it must be ") as raised:
        SamplingParams(**values)
    assert "\n" not in str(raised.value)


def test_one_word_is_no_list_of_letters() -> None:
    params = SamplingParams(stop="END", bad_words="no")
    assert (params.stop, params.bad_words) == (("END",), ("no",))


def test_without_a_tokenizer_texts_chats_and_stops_are_refused(bare: LLM) -> None:
    with pytest.raises(
        RequestError, match=r'a text prompt needs .*\{"prompt_token_ids": \[...\]\} or'
    ):
        bare.generate("Tom")
    with pytest.raises(RequestError, match="a conversation needs a tokenizer"):
        bare.chat([{"role": "user", "content": "Tom?"}])
    with pytest.raises(RequestError, match="stop strings need a tokenizer"):
        bare.generate({"prompt_token_ids": [5]}, SamplingParams(stop="x"))


@pytest.mark.parametrize("prompt", [5, {"ids": [1]}, {"prompt_token_ids": ["x"]}, None], ids=str)
def test_what_is_no_prompt(llm: LLM, prompt: object) -> None:
    with pytest.raises(RequestError, match="a prompt is a text or"):
        llm.generate([PROMPTS[0], prompt])  # type: ignore[list-item]


def test_half_a_character_is_no_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"'\\ud800' at position 4 is half of a character"):
        llm.generate([PROMPTS[0], "Tom \ud800"])
    with pytest.raises(RequestError, match="half of a character"):
        llm.chat([{"role": "user", "content": "\ud800"}])


def test_a_bad_prompt_stops_the_call_before_anything_is_sampled(llm: LLM) -> None:
    before = llm.engine.stats.generated_tokens
    for bad in ({"prompt_token_ids": []}, {"prompt_token_ids": [3] * 3000}):
        with pytest.raises(RequestError, match=r"the prompt (is empty|has 3000 tokens)"):
            llm.generate([*PROMPTS, bad], SAMPLED)
    assert llm.engine.stats.generated_tokens == before


def test_a_wrong_number_of_params(llm: LLM) -> None:
    with pytest.raises(RequestError, match="3 prompts need 3 SamplingParams or one, not 2"):
        llm.generate(PROMPTS, [GREEDY, GREEDY])


def test_a_tokenizer_without_a_chat_template() -> None:
    llm = LLM(make_tiny("llama"), tiny_tokenizer(chat=False), kv_cache_memory=MEMORY)
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "Tom?"}])
    llm.engine.model.release()


def test_memory_too_small_for_one_sample(folder: Path) -> None:
    llm = LLM(folder, kv_cache_memory=1 << 15)
    with pytest.raises(CapacityError, match="give it more memory or lower max_tokens"):
        llm.generate(PROMPTS, SamplingParams(max_tokens=500))


def test_a_tokenizer_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        LLM(folder, tokenizer=str(tmp_path / "nowhere"))


def test_compile_is_the_engine_s(bare: LLM, folder: Path) -> None:
    assert bare.engine.config.compiles
    assert not LLM(folder, kv_cache_memory=MEMORY, compile=False).engine.config.compiles


# -- tokens of a prompt -------------------------------------------------------------------------


def test_an_eos_that_the_tokenizer_appends_is_left_out() -> None:
    """As in a job: a prompt is to be continued."""
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer()
    assert tokenizer("ab")["input_ids"][-1] == tokenizer.eos_token_id
    with LLM(make_tiny("llama"), tokenizer, kv_cache_memory=MEMORY) as llm:
        [output] = llm.generate("ab", GREEDY)
        streamed = [c.completion.request.prompt_token_ids for _, c in llm.stream(["ab"], GREEDY)]
    assert output.prompt_token_ids == tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert streamed == [output.prompt_token_ids]


def test_bos_stands_once(llm: LLM) -> None:
    [plain], [begun] = llm.generate("Tom", GREEDY), llm.generate("<s>Tom", GREEDY)
    bos = llm.tokenizer.bos_token_id
    assert plain.prompt_token_ids[0] == bos
    assert plain.prompt_token_ids == begun.prompt_token_ids


def test_log_probabilities_of_the_distribution_that_is_drawn_from() -> None:
    """After penalties, temperature and filters; the tokens are the same as with the raw ones."""
    model = make_tiny("llama")
    prompt = {"prompt_token_ids": [5, 6, 7]}
    params = SamplingParams(
        n=3, temperature=0.7, top_p=0.8, presence_penalty=0.5, max_tokens=5, ignore_eos=True,
        logprobs=128, seed=3,
    )  # fmt: skip
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        raw = llm.generate(prompt, params)[0].outputs
        greedy = llm.generate(prompt, GREEDY)[0].outputs[0]
    with LLM(model, kv_cache_memory=MEMORY, logprobs_mode="processed_logprobs") as llm:
        processed = llm.generate(prompt, params)[0].outputs
        same = llm.generate(prompt, GREEDY)[0].outputs[0]
        assert same.cumulative_logprob == greedy.cumulative_logprob
    for before, after in zip(raw, processed, strict=True):
        assert after.token_ids == before.token_ids
        for place, token in enumerate(after.token_ids):
            logits = torch.tensor([before.logprobs[place][i].logprob for i in range(128)])
            for seen in set(after.token_ids[:place]):
                logits[seen] -= 0.5
            probabilities = (logits / 0.7).softmax(-1)
            ordered = probabilities.sort(descending=True)
            above = ordered.values.cumsum(-1) - ordered.values
            kept = ordered.indices[above < 0.8]
            expected = torch.full((128,), -torch.inf)
            expected[kept] = (probabilities[kept] / probabilities[kept].sum()).log()
            found = torch.tensor([after.logprobs[place][i].logprob for i in range(128)])
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            entry = after.logprobs[place][token]
            assert entry.rank == int((expected > expected[token]).sum()) + 1
        own = [after.logprobs[place][token].logprob for place, token in enumerate(after.token_ids)]
        assert after.cumulative_logprob == pytest.approx(sum(own), abs=1e-6)
    with pytest.raises(UsageError, match="logprobs_mode is 'raw_logits': it must be"):
        LLM(model, logprobs_mode="raw_logits")  # type: ignore[arg-type]


# -- compiling ----------------------------------------------------------------------------------


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Setting]:
    """What engines are made from, as they are made."""
    made: list[Setting] = []

    def noted(setting: Setting, *arguments: Any, **named: Any) -> Any:
        made.append(setting)
        return open_engine(setting, *arguments, **named)

    monkeypatch.setattr(opening, "open_engine", noted)
    return made


def _as_on_a_gpu(llm: LLM, setting: Setting) -> None:
    llm._compiled = replace(setting, config=replace(setting.config, compile=None))


@pytest.mark.slow
def test_an_llm_begins_uncompiled_until_its_calls_are_long(
    folder: Path, settings: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "COMPILING_SECONDS", 0.004)
    params = SamplingParams(n=2, max_tokens=8, seed=1)  # 8 steps of 2 layers: 1.1 ms
    with LLM(folder, kv_cache_memory=MEMORY) as llm:
        [setting] = settings
        assert setting.config.compile is False
        _as_on_a_gpu(llm, setting)
        drawn = [[each.text for each in llm.generate("a b", params)[0].outputs] for _ in range(3)]
        assert len(settings) == 1
        drawn.append([each.text for each in llm.generate("a b", params)[0].outputs])
        assert [each.config.compile for each in settings] == [False, None]
        assert drawn == [drawn[0]] * 4
        llm.generate("a b", params)
        assert len(settings) == 2


def test_an_llm_of_which_the_rule_has_no_say_is_made_once(
    folder: Path, settings: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "COMPILING_SECONDS", 0.0)
    for said in ({"compile": True}, {"deterministic": True}, {"enforce_eager": True}, {}):
        with LLM(folder, kv_cache_memory=MEMORY, **said) as llm:  # type: ignore[arg-type]
            llm.generate({"prompt_token_ids": [5, 6]}, GREEDY)
    assert [each.config.compile for each in settings] == [True, None, None, False]


@pytest.mark.slow
def test_a_stream_compiles_unless_its_prompts_are_a_short_list(
    folder: Path, settings: list[Setting]
) -> None:
    prompts = [{"prompt_token_ids": [5, 6]}]
    with LLM(folder, kv_cache_memory=MEMORY) as llm:
        _as_on_a_gpu(llm, settings[0])
        list(llm.stream(prompts, GREEDY))
        assert len(settings) == 1
        list(llm.stream(iter(prompts), GREEDY))
        assert len(settings) == 2


@pytest.mark.slow
def test_files_that_changed_meanwhile_are_no_other_model(
    folder: Path, tmp_path: Path, settings: list[Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "model"))
    monkeypatch.setattr(llm_module, "COMPILING_SECONDS", 0.0)
    with LLM(own, kv_cache_memory=MEMORY) as llm:
        _as_on_a_gpu(llm, settings[0])
        config = json.loads((own / "config.json").read_text())
        (own / "config.json").write_text(json.dumps(config | {"remark": "another"}))
        with pytest.raises(ModelError, match="its files changed since this LLM was made"):
            llm.generate({"prompt_token_ids": [5, 6]}, GREEDY)


# -- closing ------------------------------------------------------------------------------------


def test_a_closed_llm_gives_the_model_back() -> None:
    model = make_tiny("llama")
    own = model.config._attn_implementation
    prompt = {"prompt_token_ids": [5, 6, 7]}
    ids = torch.tensor([[5, 6, 7]])
    before = model(ids).logits
    with LLM(model, kv_cache_memory=MEMORY) as llm:
        first = llm.generate(prompt, GREEDY)
        with pytest.raises(ModelError, match="in use already"):
            LLM(model, kv_cache_memory=MEMORY)
    assert model.config._attn_implementation == own
    assert torch.equal(model(ids).logits, before)
    for call in (
        lambda: llm.generate(prompt),
        lambda: list(llm.stream([prompt])),
        lambda: llm.running(),
        lambda: llm.engine,
    ):
        with pytest.raises(UsageError, match="this LLM is closed: make a new one"):
            call()
    llm.close()
    with LLM(model, kv_cache_memory=MEMORY) as second:
        again = second.generate(prompt, GREEDY)
    assert again[0].outputs[0].token_ids == first[0].outputs[0].token_ids


@pytest.mark.slow
def test_closing_frees_the_kv_cache(folder: Path) -> None:
    llm = LLM(folder, kv_cache_memory=MEMORY)
    keys = weakref.ref(llm.engine.runner.cache.keys[0])
    llm.close()
    gc.collect()
    assert keys() is None


def test_a_stream_of_a_closed_llm_ends() -> None:
    llm = LLM(make_tiny("llama"), kv_cache_memory=MEMORY, max_sequences=1)
    prompts = [{"prompt_token_ids": [5, 6 + i]} for i in range(9)]
    stream = llm.stream(prompts, SamplingParams(max_tokens=4, ignore_eos=True))
    next(stream)
    llm.close()
    with pytest.raises(UsageError, match="closed while a job ran"):
        list(stream)
