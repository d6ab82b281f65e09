"""10,000 random settings against transformers' own processors and warpers, in their order."""

import math
import random

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as oracle

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.sample.processed import processed_top_logprobs
from sharegen.engine.sample.sampler import (
    SamplingState,
    adjusted,
    sample,
    token_weights,
    uniform,
)
from tests.engine.tiny_models import make_tiny

VOCAB_SIZE = 23
EOS = (1, 2)
MAX_OUTPUT = 6
MARGIN = 1e-5
"""How near a threshold a token may be for float32 and float64 to judge it differently."""


class WordTokenizer:
    """Spells every word as the tokens of its letters: a is 0, b is 1, ..."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(letter) - ord("a") for letter in text.strip()]


def random_params(rng: random.Random) -> SamplingParams:
    def sometimes(draw, otherwise):
        return draw() if rng.random() < 0.4 else otherwise

    def word() -> str:
        return "".join(chr(97 + rng.randrange(VOCAB_SIZE)) for _ in range(rng.randint(1, 3)))

    min_tokens = sometimes(lambda: rng.randint(0, MAX_OUTPUT), 0)
    return SamplingParams(
        temperature=rng.choice([0.0, 0.3, 0.7, 1.0, 1.0, 1.9]),
        top_k=sometimes(lambda: rng.randint(-1, VOCAB_SIZE + 3), 0),
        top_p=sometimes(lambda: rng.uniform(0.01, 1.0), 1.0),
        min_p=sometimes(lambda: rng.uniform(0, 0.5), 0.0),
        repetition_penalty=sometimes(lambda: rng.uniform(0.5, 2.0), 1.0),
        presence_penalty=sometimes(lambda: rng.uniform(-2, 2), 0.0),
        frequency_penalty=sometimes(lambda: rng.uniform(-2, 2), 0.0),
        logit_bias=sometimes(
            lambda: {rng.randrange(VOCAB_SIZE): rng.uniform(-5, 5) for _ in range(3)}, None
        ),
        bad_words=sometimes(lambda: [word() for _ in range(rng.randint(1, 5))], ()),
        max_tokens=16,
        min_tokens=min_tokens,
        stop_token_ids=sometimes(lambda: [rng.randrange(VOCAB_SIZE)], ()),
        ignore_eos=rng.random() < 0.2,
        allowed_token_ids=sometimes(
            lambda: rng.sample(range(VOCAB_SIZE), rng.randint(VOCAB_SIZE // 2, VOCAB_SIZE)), None
        ),
    )


def processed(logits: Tensor, params: SamplingParams, prompt: list[int], output: list[int]):
    """Logits after transformers' processors; frequency and presence by their definition."""
    ids = torch.tensor([prompt + output])
    processors: list = []
    if params.allowed_token_ids:
        others = [token for token in range(VOCAB_SIZE) if token not in params.allowed_token_ids]
        processors.append(oracle.SuppressTokensLogitsProcessor(others))
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias.items()}
        processors.append(oracle.SequenceBiasLogitsProcessor(bias))
    if params.repetition_penalty != 1:
        processors.append(oracle.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(lambda _, scores: scores - output_penalty(params, output))
    words = [WordTokenizer().encode(word, False) for word in params.bad_words]
    if words and any(len(word) > 1 or word[0] not in EOS for word in words):
        processors.append(oracle.NoBadWordsLogitsProcessor(words, eos_token_id=list(EOS)))
    ends = [*params.stop_token_ids, *(() if params.ignore_eos else EOS)]
    if params.min_tokens and ends:
        processors.append(
            oracle.MinNewTokensLengthLogitsProcessor(len(prompt), params.min_tokens, ends)
        )
    scores = logits.double()[None]
    for processor in processors:
        scores = processor(ids, scores)
    return scores


def output_penalty(params: SamplingParams, output: list[int]) -> Tensor:
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB_SIZE)
    return params.frequency_penalty * counts + params.presence_penalty * (counts > 0).double()


def warped(scores: Tensor, params: SamplingParams, slack: float) -> Tensor:
    """Scores after transformers' warpers, with thresholds moved by slack: lower keeps more."""
    warpers: list = []
    if params.temperature:
        warpers.append(oracle.TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        warpers.append(oracle.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(oracle.TopPLogitsWarper(min(1.0, max(1e-9, params.top_p - slack))))
    if params.min_p > 0:
        warpers.append(oracle.MinPLogitsWarper(min(1.0, max(0.0, params.min_p * (1 + slack)))))
    for warper in warpers:
        scores = warper(torch.zeros(1, 0, dtype=torch.int64), scores)
    return scores


@pytest.mark.parametrize(
    "batch", [*range(4), *(pytest.param(i, marks=pytest.mark.slow) for i in range(4, 10))]
)
@pytest.mark.turn(8)
def test_settings_against_transformers(batch):
    rng = random.Random(batch)
    generator = torch.manual_seed(batch)
    count = 1000
    params = [random_params(rng) for _ in range(count)]
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 8))] for _ in params]
    outputs = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 6))] for _ in params]
    logits = torch.randn(count, VOCAB_SIZE, generator=generator) * 2.5
    state = SamplingState(count, VOCAB_SIZE, eos_token_ids=EOS, tokenizer=WordTokenizer())
    state.set_rows(range(count), params, [row_key(batch, i, 0) for i in range(count)], prompts)
    history = torch.full((count, MAX_OUTPUT), -1)
    for row, output in zip(history, outputs, strict=True):
        row[: len(output)] = torch.tensor(output, dtype=torch.int64)
    positions = torch.tensor([len(output) for output in outputs])
    rows, features = slice(0, count), state.features()

    edited = adjusted(logits, state, rows, positions, history, features)
    weights = token_weights(
        edited, state.temperature, state.top_k, state.top_p, state.min_p, filtered=True
    )
    tokens, logprobs = sample(logits, state, positions, history=history)
    numbers = uniform(state.keys, positions).double()
    raw = logits.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, raw)
    weights_of_greedy = edited.softmax(-1)
    greedy = torch.tensor([one.is_greedy for one in params])[:, None]
    check_processed(
        logits, state, positions, history, tokens, weights.where(~greedy, weights_of_greedy)
    )

    near = 0
    for i in range(count):
        scores = processed(logits[i], params[i], prompts[i], outputs[i])
        torch.testing.assert_close(edited[i : i + 1].double(), scores, rtol=1e-5, atol=1e-5)
        if params[i].temperature == 0:
            assert tokens[i] == scores.argmax()
            continue
        kept = weights[i] > 0
        tight, loose = (warped(scores, params[i], slack)[0] for slack in (MARGIN, -MARGIN))
        assert not (kept & torch.isinf(loose)).any(), params[i]
        assert not (~kept & (tight > loose.max() - 80)).any(), params[i]
        if not torch.equal(torch.isinf(tight), torch.isinf(loose)):
            near += 1
            continue
        expected = tight.softmax(-1)
        got = weights[i].double() / weights[i].double().sum()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
        edges = expected.cumsum(-1)
        if (edges - numbers[i]).abs().min() > 1e-6:
            assert tokens[i] == int(torch.searchsorted(edges, numbers[i], right=True))
        else:
            near += 1
    assert near < count // 100


def check_processed(
    logits: Tensor,
    state: SamplingState,
    positions: Tensor,
    history: Tensor,
    tokens: Tensor,
    weights: Tensor,
) -> None:
    """Log-probabilities of what is drawn from are those of its weights, the drawn and all."""
    state.processed = True
    same, logprobs = sample(logits, state, positions, history=history)
    assert torch.equal(same, tokens)
    distribution = (weights.double() / weights.double().sum(-1, keepdim=True)).log()
    own = distribution.gather(1, tokens[:, None])
    torch.testing.assert_close(logprobs.double(), own[:, 0], rtol=1e-5, atol=2e-6)
    places, ids, best = processed_top_logprobs(
        logits, state, positions, tokens, logprobs, VOCAB_SIZE, history=history
    )
    expected = distribution.gather(1, ids)
    torch.testing.assert_close(best.double(), expected, rtol=1e-5, atol=4e-6)
    assert torch.equal(best, best.sort(-1, descending=True).values)
    assert torch.equal(places, (distribution > own).sum(-1) + 1)


def test_the_margin_is_not_all_there_is():
    """The sandwich above would notice a threshold off by a token."""
    scores = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).double()
    params = SamplingParams(top_p=0.8)
    tight, loose = warped(scores, params, MARGIN), warped(scores, params, -MARGIN)
    assert torch.equal(torch.isinf(tight), torch.isinf(loose))
    assert math.isinf(tight[0, 0])
    assert not math.isinf(tight[0, 2])


def test_the_order_is_that_of_transformers():
    """The oracle's processors stand in the order in which generate() applies them."""
    config = GenerationConfig(
        do_sample=True, sequence_bias={(3,): 1.0}, repetition_penalty=1.2, bad_words_ids=[[5]],
        min_new_tokens=3, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, eos_token_id=2,
    )  # fmt: skip
    model = make_tiny("llama")
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        config, input_ids_seq_length=4, device="cpu", logits_processor=oracle.LogitsProcessorList()
    )
    wanted = [
        oracle.SequenceBiasLogitsProcessor, oracle.RepetitionPenaltyLogitsProcessor,
        oracle.NoBadWordsLogitsProcessor, oracle.MinNewTokensLengthLogitsProcessor,
        oracle.TemperatureLogitsWarper, oracle.TopKLogitsWarper, oracle.TopPLogitsWarper,
        oracle.MinPLogitsWarper,
    ]  # fmt: skip
    assert [type(processor) for processor in processors] == wanted
