"""The sampling kernels against their torch reference, and against sorting in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sharegen.engine.core.random_key import row_key
from sharegen.engine.sample import sampler as reference
from sharegen.engine.sample.draws import uniform
from sharegen.kernels import draw as kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREEDY = {"temperature": 0.0}


class Rows:
    """Arguments of `draw` for some rows of logits."""

    def __init__(self, logits: Tensor, seed: int = 0, **options: float) -> None:
        count, vocab_size = logits.shape
        self.logits = logits.to(DEVICE)
        self.temperature = torch.full((count,), options.get("temperature", 1.0), device=DEVICE)
        self.top_p = torch.full((count,), options.get("top_p", 1.0), device=DEVICE)
        self.min_p = torch.full((count,), options.get("min_p", 0.0), device=DEVICE)
        self.top_k = torch.full((count,), int(options.get("top_k", vocab_size)), device=DEVICE)
        self.keys = torch.tensor([row_key(seed, i, 0) for i in range(count)], device=DEVICE)
        self.positions = torch.arange(count, device=DEVICE) % 7

    def arguments(self) -> tuple[Tensor, ...]:
        return (
            self.temperature, self.top_k, self.top_p, self.min_p, self.keys, self.positions
        )  # fmt: skip

    def drawn(self, **options: object) -> tuple[Tensor, Tensor]:
        options.setdefault("filtered", True)
        return kernels.draw(self.logits, self.logits, *self.arguments(), **options)

    def expected(self, **options: object) -> tuple[Tensor, Tensor]:
        options.setdefault("filtered", True)
        logits = self.logits.cpu()
        arguments = [argument.cpu() for argument in self.arguments()]
        tokens, logprobs = reference.draw(logits, logits, *arguments, **options)
        return tokens.to(DEVICE), logprobs.to(DEVICE)

    def weights(self) -> Tensor:
        """The exact distribution that is drawn from, float64 on the CPU."""
        logits = self.logits.cpu()
        arguments = [argument.cpu() for argument in self.arguments()[:4]]
        weights = reference.token_weights(logits.float(), *arguments, filtered=True).double()
        return weights / weights.sum(-1, keepdim=True)

    def check(self, **options: object) -> int:
        """Compare with the reference but where the number falls on an edge; returns how many do."""
        tokens, logprobs = self.drawn(**options)
        expected, expected_logprobs = self.expected(**options)
        numbers = uniform(self.keys, self.positions).cpu().double()
        edges = self.weights().cumsum(-1)
        near = ((edges - numbers[:, None]).abs().amin(-1) < 3e-6).to(DEVICE)
        wrong = (tokens != expected) & ~near
        assert not wrong.any(), (tokens[wrong], expected[wrong])
        same = tokens == expected
        torch.testing.assert_close(logprobs[same], expected_logprobs[same], rtol=1e-5, atol=1e-5)
        return int(near.sum())


def random_logits(count: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return torch.randn(count, vocab_size, generator=torch.manual_seed(seed)) * scale


@pytest.mark.parametrize("vocab_size", [2, 37, 512, 4096, 4097, 11_111])
def test_plain(vocab_size: int) -> None:
    rows = Rows(random_logits(9, vocab_size), temperature=0.7)
    assert rows.check(filtered=False) < 3


def test_mixed_rows() -> None:
    rows = Rows(random_logits(15, 700))
    rows.temperature[::4] = 0
    rows.temperature[1::4] = 0.6
    rows.top_p[2::3] = 0.7
    rows.top_k[1::5] = 11
    rows.min_p[::7] = 0.05
    assert rows.check() < 4


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e6])
@pytest.mark.turn(3)
def test_far_temperatures(temperature: float) -> None:
    """Around 10,000 a float32 has steps of 1e-3, where the least temperature sees 1e-3 in all."""
    for offset in (0.0, 1e4):
        logits = random_logits(2, 90) + offset
        assert Rows(logits, temperature=temperature, top_k=7, top_p=0.9).check() < 3


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(3, 9000)
    logits[0, [5000, 8999]] = 2.0
    logits[1, [4095, 4096]] = 2.0
    assert Rows(logits, **GREEDY).drawn()[0].tolist() == [5000, 4095, 0]


@pytest.mark.slow
def test_barred_tokens_are_never_drawn() -> None:
    logits = torch.full((8, 9000), -torch.inf)
    logits[:, [50, 8999]] = 1.0
    for options in ({}, {"top_k": 1}, {"top_k": 70, "top_p": 0.9}, {"min_p": 0.5}, GREEDY):
        tokens, logprobs = Rows(logits, **options).drawn()
        expected = [50] if options is GREEDY else [50, 8999]
        assert sorted(tokens.unique().tolist()) == expected
        torch.testing.assert_close(logprobs.cpu(), torch.full((8,), math.log(0.5)))


@pytest.mark.turn(4)
def test_log_probabilities_of_what_is_drawn_from() -> None:
    rows = Rows(random_logits(24, 9000))
    rows.temperature[::4] = 0
    rows.temperature[1::4] = 0.6
    rows.top_p[2::3] = 0.7
    rows.top_k[1::5] = 11
    rows.min_p[::7] = 0.05
    assert rows.check(processed=True) < 4
    tokens, logprobs = rows.drawn(processed=True)
    of_weights = rows.weights().log().gather(1, tokens.cpu()[:, None])[:, 0]
    random = (rows.temperature > 0).cpu()
    torch.testing.assert_close(
        logprobs.cpu().double()[random], of_weights[random], rtol=1e-5, atol=1e-5
    )
    plain = Rows(random_logits(5, 700), temperature=1.0)
    same = plain.drawn(filtered=False, processed=True)
    torch.testing.assert_close(same, plain.drawn(filtered=False))


def test_far_apart_and_far_from_zero() -> None:
    for offset in (-1e5, 1e5):
        assert Rows(random_logits(5, 300, scale=100.0) + offset, top_p=0.9).check() < 3
    logits = torch.full((1, 300), -3e38)
    logits[0, 200] = 3e38
    assert Rows(logits, top_p=0.9, top_k=3).drawn()[0].tolist() == [200]


def test_nan_stays_inside_the_vocabulary() -> None:
    logits = torch.full((3, 5000), torch.nan)
    for options in ({}, {"top_k": 3, "top_p": 0.5}, GREEDY):
        tokens = Rows(logits, **options).drawn()[0]
        assert ((tokens >= 0) & (tokens < 5000)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3, "top_p": 0.5}, {"min_p": 0.1}, GREEDY], ids=str
)
@pytest.mark.turn(4)
def test_what_is_no_distribution_has_no_log_probability(
    options: dict[str, float], dtype: torch.dtype
) -> None:
    """One NaN, one +inf, nothing but -inf; the other rows are as they are without these."""
    logits = random_logits(6, 4200).to(dtype)
    good = Rows(logits.clone(), **options)
    logits[1, 4150], logits[2, 5], logits[3] = torch.nan, torch.inf, -torch.inf
    logits[4, 10:] = -torch.inf
    bad = Rows(logits, **options)
    drawn = bad.drawn()
    for tokens, logprobs in (drawn, bad.expected()):
        assert logprobs.isnan().tolist() == [False, True, True, True, False, False]
        assert ((tokens >= 0) & (tokens < 4200)).all() and tokens[4] < 10
    kept = [0, 5]
    for mine, its in zip(drawn, good.drawn(), strict=True):
        assert torch.equal(mine[kept], its[kept])


@pytest.mark.parametrize("options", [{}, {"top_k": 3, "top_p": 0.5}, GREEDY], ids=str)
@pytest.mark.turn(3)
def test_what_penalties_and_biases_leave_decides(options: dict[str, float]) -> None:
    raw = random_logits(4, 9000)
    after = raw.clone()
    after[1], after[2, 7000], after[3, :8999] = -torch.inf, torch.inf, -torch.inf
    arguments = Rows(raw, **options).arguments()
    for draw, device in ((kernels.draw, DEVICE), (reference.draw, torch.device("cpu"))):
        given = [argument.to(device) for argument in (after, raw, *arguments)]
        tokens, logprobs = draw(*given, filtered=True)
        assert logprobs.isnan().tolist() == [False, True, True, False]
        assert tokens[3] == 8999


@pytest.mark.slow
def test_rows_are_their_own() -> None:
    rows = Rows(random_logits(6, 5003), top_p=0.8)
    tokens, logprobs = rows.drawn()
    for i in (0, 3, 5):
        arguments = [argument[i : i + 1] for argument in rows.arguments()]
        alone = kernels.draw(
            rows.logits[i : i + 1], rows.logits[i : i + 1], *arguments, filtered=True
        )
        assert torch.equal(alone[0], tokens[i : i + 1])
        assert torch.equal(alone[1], logprobs[i : i + 1])


@pytest.mark.slow
def test_shared_rows_of_logits() -> None:
    logits = random_logits(3, 700)
    which = torch.tensor([2, 0, 0, 1, 2, 2, 1], device=DEVICE)
    rows = Rows(logits[which.cpu()], top_p=0.8)
    few = logits.to(DEVICE)
    got = kernels.draw(few, few, *rows.arguments(), which, filtered=True)
    expected = rows.drawn()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.slow
def test_raw_logits_apart_from_adjusted_ones() -> None:
    raw = random_logits(4, 5003, seed=1).to(DEVICE)
    rows = Rows(random_logits(4, 5003, seed=2), top_k=50)
    tokens, logprobs = kernels.draw(rows.logits, raw, *rows.arguments(), filtered=True)
    assert torch.equal(tokens, rows.drawn()[0])
    expected = raw.log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)


def test_half_precision_and_strided_arguments() -> None:
    rows = Rows(random_logits(8, 700), temperature=0.8, top_p=0.9)
    rows.logits = torch.nn.functional.pad(rows.logits.half(), (0, 5))[:, :700]
    table = torch.stack([rows.temperature, rows.top_p, rows.min_p], 1)
    rows.temperature, rows.top_p, rows.min_p = table.unbind(1)
    rows.keys, rows.top_k = torch.stack([rows.keys, rows.top_k], 1).unbind(1)
    assert rows.check() < 3


def test_no_rows() -> None:
    rows = Rows(torch.empty(0, 50))
    assert rows.drawn()[0].shape == (0,)


def test_numbers_are_those_of_the_host() -> None:
    """With equal logits the token is floor(number * vocab_size)."""
    rows = Rows(torch.zeros(30, 256), seed=5)
    tokens = rows.drawn(filtered=False)[0]
    assert torch.equal(tokens, (uniform(rows.keys, rows.positions) * 256).long())


@pytest.mark.parametrize("vocab_size", [37, 4097])
def test_given_tokens_have_the_bits_of_drawn_ones(vocab_size: int) -> None:
    rows = Rows(random_logits(9, vocab_size))
    rows.logits[3, 5] = -torch.inf
    tokens, logprobs = rows.drawn(filtered=False)
    other = torch.full_like(tokens, 5)
    which = torch.arange(8, -1, -1, device=DEVICE)
    given = torch.stack([tokens[which], other], 1)
    found = kernels.token_logprobs(rows.logits, given, which)
    assert torch.equal(found[:, 0], logprobs[which])
    expected = rows.logits.log_softmax(-1)[which, 5]
    torch.testing.assert_close(found[:, 1], expected, rtol=1e-5, atol=1e-5)
    alone = kernels.token_logprobs(rows.logits[2:3], given[6:7])
    assert torch.equal(alone, found[6:7])
