"""Sampling: the distribution is the softmax's, the filters are transformers', a row is its own."""

import math

import pytest
import torch
from torch import Tensor

from sharegen.engine.core.random_key import row_key
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.sample import sampler
from sharegen.engine.sample.filters import SHORTLIST, survivors
from sharegen.engine.sample.sampler import (
    SamplingState,
    inverse_cdf,
    ranks,
    sample,
    token_logprobs,
    top_logprobs,
    uniform,
)
from sharegen.errors import RequestError


def state_of(params: list[SamplingParams], vocab_size: int, seed: int = 0, **options):
    state = SamplingState(len(params), vocab_size, **options)
    keys = [row_key(seed, i, 0) for i in range(len(params))]
    state.set_rows(range(len(params)), params, keys, [[0]] * len(params))
    return state


def first_positions(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int64)


def mixed_params(count: int) -> list[SamplingParams]:
    """A bit of everything, greedy rows among them."""
    kinds = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=1.5, top_k=5),
        SamplingParams(temperature=2.0, top_k=90, top_p=0.99),
        SamplingParams(temperature=1.0, min_p=0.1),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.5, min_p=0.05),
        SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.5),
        SamplingParams(temperature=1.0, logit_bias={3: 5.0}, min_tokens=2, stop_token_ids=(4,)),
    ]
    return [kinds[i % len(kinds)] for i in range(count)]


class TestGreedy:
    def test_takes_the_best_and_its_raw_logprob(self):
        logits = torch.randn(7, 33, generator=torch.manual_seed(0))
        tokens, logprobs = sample(
            logits, state_of([SamplingParams(temperature=0)] * 7, 33), first_positions(7)
        )
        assert torch.equal(tokens, logits.argmax(-1))
        torch.testing.assert_close(logprobs, logits.log_softmax(-1).amax(-1))

    def test_mixes_with_drawing_rows(self):
        logits = torch.randn(40, 33, generator=torch.manual_seed(0))
        params = [SamplingParams(temperature=float(i % 2) * 3) for i in range(40)]
        tokens, _ = sample(logits, state_of(params, 33), first_positions(40))
        best = logits.argmax(-1)
        assert torch.equal(tokens[::2], best[::2])
        assert (tokens[1::2] != best[1::2]).any()

    def test_a_vanishing_temperature_is_greedy(self):
        logits = torch.randn(5, 9, generator=torch.manual_seed(1)) * 1e4
        state = state_of([SamplingParams(temperature=1e-30)] * 5, 9)
        assert torch.equal(sample(logits, state, first_positions(5))[0], logits.argmax(-1))


class TestDistribution:
    @pytest.mark.turn(3)
    @pytest.mark.parametrize(
        ("params", "seed"),
        [
            (SamplingParams(temperature=1.0), 0),
            (SamplingParams(temperature=0.7), 1),
            (SamplingParams(temperature=1.6, top_k=9), 2),
            (SamplingParams(temperature=1.0, top_p=0.8), 3),
            (SamplingParams(temperature=1.2, min_p=0.08), 4),
            (SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05), 5),
        ],
    )
    def test_chi_square_against_the_softmax(self, params, seed):
        """40,000 first tokens of as many samples of one prompt, against exact probabilities."""
        count, vocab_size = 40_000, 24
        logits = torch.randn(1, vocab_size, generator=torch.manual_seed(seed)) * 1.5
        state = state_of([params] * count, vocab_size, seed)
        tokens, _ = sample(logits, state, first_positions(count), logit_rows=first_positions(count))
        expected = plain_distribution(logits[0].double(), params) * count
        observed = torch.bincount(tokens, minlength=vocab_size)
        assert observed[expected == 0].sum() == 0
        live = expected > 0
        chi_square = ((observed - expected)[live] ** 2 / expected[live]).sum().item()
        freedom = int(live.sum()) - 1
        # Wilson and Hilferty's approximation of the 99.9% point.
        limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
        assert chi_square < limit

    def test_successive_positions_draw_afresh(self):
        count, vocab_size = 20_000, 8
        logits = torch.zeros(1, vocab_size)
        state = state_of([SamplingParams()], vocab_size)
        tokens, _ = sample(
            logits,
            state,
            torch.arange(count),
            rows=first_positions(count),
            logit_rows=first_positions(count),
        )
        pairs = torch.bincount(tokens[:-1] * vocab_size + tokens[1:], minlength=vocab_size**2)
        expected = (count - 1) / vocab_size**2
        assert ((pairs - expected) ** 2 / expected).sum() < 104  # 63 degrees, one in a thousand

    def test_the_token_is_the_inverse_of_the_cumulative_distribution(self):
        weights = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])
        edges = [0.0, 0.2499, 0.25, 0.74, 0.75, 1 - 2**-24]
        found = [inverse_cdf(weights, torch.tensor([u])).item() for u in edges]
        assert found == [1, 1, 3, 3, 4, 4]


def plain_distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """The filters' definition for one row, in float64 and by sorting."""
    scaled = logits / params.temperature
    probs = scaled.softmax(-1)
    if params.top_k > 0:
        kth = scaled.sort(descending=True).values[params.top_k - 1]
        probs = torch.where(scaled >= kth, probs, 0.0)
    probs = probs / probs.sum()
    above = torch.stack([probs[scaled > value].sum() for value in scaled])
    probs = torch.where(above < params.top_p, probs, 0.0)
    probs = torch.where(probs >= params.min_p * probs.max(), probs, 0.0)
    return probs / probs.sum()


class TestRowsAreTheirOwn:
    """Bit for bit the same, whatever else is in the batch (float32, CPU)."""

    @pytest.mark.parametrize("vocab_size", [37, 512, 5003, 40_000])
    def test_any_batch_size_and_order(self, vocab_size):
        count = 53
        generator = torch.manual_seed(vocab_size)
        logits = torch.randn(count, vocab_size, generator=generator) * 3
        params = mixed_params(count)
        positions = torch.arange(count) % 3
        history = torch.full((count, 3), -1)
        for row in range(count):
            history[row, : positions[row]] = torch.randint(
                vocab_size, (int(positions[row]),), generator=generator
            )
        state = state_of(params, vocab_size, eos_token_ids=(1,))
        tokens, logprobs = sample(logits, state, positions, history=history)
        order = torch.randperm(count, generator=generator)
        for size in (1, 2, 7, 16, count):
            for rows in order.split(size):
                part, part_logprobs = sample(
                    logits[rows], state, positions[rows], rows=rows, history=history
                )
                assert torch.equal(part, tokens[rows])
                assert torch.equal(part_logprobs, logprobs[rows])

    def test_many_threads_or_one(self):
        logits = torch.randn(9, 60_000, generator=torch.manual_seed(0))
        state = state_of(mixed_params(9), 60_000)
        threads = torch.get_num_threads()
        try:
            results = []
            for count in (1, 2, 4):
                torch.set_num_threads(count)
                results.append(sample(logits, state, first_positions(9)))
                results.append(sample(logits[:1], state, first_positions(1)))
        finally:
            torch.set_num_threads(threads)
        for whole, first in zip(results[::2], results[1::2], strict=True):
            assert torch.equal(whole[0], results[0][0])
            assert torch.equal(whole[1], results[0][1])
            assert torch.equal(first[1], results[0][1][:1])

    def test_features_of_others_change_nothing(self):
        """A plain row draws the same beside rows that need filters, penalties and biases."""
        logits = torch.randn(20, 64, generator=torch.manual_seed(3))
        alone = state_of([SamplingParams(temperature=0.9)] * 20, 64)
        params = mixed_params(20)
        params[1] = params[11] = SamplingParams(temperature=0.9)
        beside = state_of(params, 64)
        plain = sample(logits, alone, first_positions(20))
        mixed = sample(logits, beside, first_positions(20))
        for row in (1, 11):
            assert plain[0][row] == mixed[0][row]
            assert plain[1][row] == mixed[1][row]

    def test_steadily_rows_that_nothing_changes_are_drawn_from_as_they_came(self, monkeypatch):
        """On a GPU what is changed is in float32, where the kernel adds up in another order."""
        logits = torch.randn(20, 64, generator=torch.manual_seed(3)).bfloat16()
        expected = sample(logits, state_of(mixed_params(20), 64), first_positions(20))
        dtypes = []

        def noted(after, before, *given, **how):
            dtypes.append(after.dtype)
            return draw(after, before, *given, **how)

        draw = sampler.draw
        operations = sampler._operations(False)._replace(draw=noted)
        monkeypatch.setattr(sampler, "_operations", lambda on_gpu: operations)
        steady = state_of(mixed_params(20), 64, steady=True)
        found = sample(logits, steady, first_positions(20))
        assert dtypes == [torch.float32, torch.bfloat16]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert steady.fresh([SamplingParams()], [0], [[0]]).features().steady

    def test_shared_logits_rows(self):
        logits = torch.randn(3, 50, generator=torch.manual_seed(3))
        which = torch.tensor([2, 0, 0, 1, 2, 2, 1])
        params = mixed_params(7)
        state = state_of(params, 50)
        shared = sample(logits, state, first_positions(7), logit_rows=which)
        spread = sample(logits[which], state, first_positions(7))
        assert torch.equal(shared[0], spread[0])
        assert torch.equal(shared[1], spread[1])

    def test_no_rows(self):
        state = state_of([SamplingParams()], 50)
        tokens, logprobs = sample(torch.empty(0, 50), state, first_positions(0))
        assert tokens.shape == logprobs.shape == (0,)


class TestFilters:
    def test_ties_at_the_threshold_all_stay(self):
        scaled = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
        weights = scaled.softmax(-1)

        def kept(top_k: int = 6, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
            keep = survivors(
                scaled,
                weights,
                torch.tensor([top_k]),
                torch.tensor([top_p]),
                torch.tensor([min_p]),
            )
            return keep[0].nonzero().squeeze(-1).tolist()

        assert kept(top_k=1) == [1]
        assert kept(top_k=2) == kept(top_k=3) == kept(top_k=4) == [1, 2, 3, 4]
        assert kept(top_k=5) == [0, 1, 2, 3, 4]
        best = weights[0, 1].item()
        assert kept(top_p=best * 0.99) == [1]
        assert kept(top_p=best * 1.01) == [1, 2, 3, 4]
        assert kept(top_p=1e-9) == [1]
        assert kept(min_p=math.exp(-1) * 1.0001) == [1]
        assert kept(min_p=math.exp(-1) * 0.9999) == [1, 2, 3, 4]
        assert kept(top_k=2, top_p=0.2) == [1]

    def test_all_logits_equal(self):
        """One large tie, longer than the shortlist: nothing can be cut."""
        vocab_size = 4 * SHORTLIST
        logits = torch.zeros(300, vocab_size)
        for params in (
            SamplingParams(top_k=1),
            SamplingParams(top_p=0.01),
            SamplingParams(min_p=0.99),
        ):
            tokens, _ = sample(logits, state_of([params] * 300, vocab_size), first_positions(300))
            assert len(tokens.unique()) > 150

    @pytest.mark.parametrize(
        "vocab_size",
        [1, SHORTLIST - 1, SHORTLIST, 10 * SHORTLIST, pytest.param(6000, marks=pytest.mark.slow)],
    )
    def test_shortlist_and_full_look_agree_with_the_definition(self, vocab_size):
        generator = torch.manual_seed(vocab_size)
        count = 60 if vocab_size < 1000 else 6
        spread = torch.tensor([0.1, 1.0, 4.0]).repeat(count // 3)[:, None]
        scaled = torch.randn(count, vocab_size, generator=generator) * spread
        top_k = torch.randint(1, vocab_size + 1, (count,), generator=generator)
        top_k[::2] = vocab_size
        top_p = torch.rand(count, generator=generator).clamp(min=0.01)
        top_p[::3] = 1.0
        min_p = torch.rand(count, generator=generator) * 0.2
        keep = survivors(scaled, scaled.softmax(-1), top_k, top_p, min_p)
        for row in range(count):
            limit = int(top_k[row])
            params = SamplingParams(top_k=limit, top_p=top_p[row].item(), min_p=min_p[row].item())
            expected = plain_distribution(scaled[row].double(), params) > 0
            assert torch.equal(keep[row], expected)

    def test_a_temperature_only_batch_never_sorts(self):
        features = state_of([SamplingParams(temperature=0.7)] * 3, 50).features()
        assert not features.filtered


class TestExtremeLogits:
    def test_barred_tokens_are_never_drawn(self):
        logits = torch.full((500, 100), -torch.inf)
        logits[:, 50] = 1.0
        logits[:, 99] = 1.0
        for params in (
            SamplingParams(),
            SamplingParams(top_k=1),
            SamplingParams(top_k=70, top_p=0.9),
            SamplingParams(min_p=0.5),
        ):
            tokens, logprobs = sample(logits, state_of([params] * 500, 100), first_positions(500))
            assert sorted(tokens.unique().tolist()) == [50, 99]
            torch.testing.assert_close(logprobs, torch.full((500,), math.log(0.5)))

    def test_large_logits(self):
        logits = torch.tensor([[3e38, -3e38, 0.0], [1e30, 1e30, -1e30]])
        tokens, logprobs = sample(
            logits, state_of([SamplingParams(temperature=1)] * 2, 3), first_positions(2)
        )
        assert tokens[0] == 0
        assert tokens[1] in (0, 1)
        assert torch.isfinite(logprobs).all()

    def test_nan_stays_inside_the_vocabulary(self):
        """Broken weights must not become an out-of-range index."""
        logits = torch.full((4, 10), torch.nan)
        tokens, _ = sample(logits, state_of(mixed_params(4), 10), first_positions(4))
        assert ((tokens >= 0) & (tokens < 10)).all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_float_types(self, dtype):
        logits = torch.randn(30, 50, generator=torch.manual_seed(3)).to(dtype)
        state = state_of(mixed_params(30), 50)
        expected = sample(logits.float(), state, first_positions(30))
        got = sample(logits, state, first_positions(30))
        assert torch.equal(got[0], expected[0])
        assert got[1].dtype == torch.float32
        assert torch.equal(got[1], expected[1])


class TestTokenLogprobs:
    def test_top_of_the_raw_distribution(self):
        logits = torch.randn(5, 40, generator=torch.manual_seed(0))
        tokens = torch.tensor([3, 0, 39, 7, 7])
        chosen, ids, best = token_logprobs(logits, tokens, 4)
        expected = logits.log_softmax(-1)
        torch.testing.assert_close(chosen, expected[torch.arange(5), tokens])
        torch.testing.assert_close(best, expected.sort(-1, descending=True).values[:, :4])
        torch.testing.assert_close(best, expected.gather(1, ids))

    @pytest.mark.parametrize("size", [128 * 40, 128 * 40 + 37])
    @pytest.mark.parametrize("top", [0, 1, 5, 10])
    def test_of_a_large_vocabulary(self, size, top):
        logits = torch.randn(9, size, generator=torch.manual_seed(size))
        logits[1] = logits[1].round()  # ties, within segments and between them
        logits[2] = -torch.inf
        logits[2, -1] = 0.0
        logits[3, :7] += 10.0  # all in one segment
        logits[4, -7:] += 10.0
        _, ids, best = token_logprobs(logits, torch.zeros(9, dtype=torch.int64), top)
        expected = logits.log_softmax(-1)
        assert torch.equal(best, expected.sort(-1, descending=True).values[:, :top])
        assert torch.equal(best, expected.gather(1, ids))
        assert all(len(set(row)) == top for row in ids.tolist())

    def test_none_wanted_and_more_than_there_are(self):
        logits = torch.randn(2, 6, generator=torch.manual_seed(0))
        assert token_logprobs(logits, torch.tensor([0, 1]), 0)[1].shape == (2, 0)
        assert token_logprobs(logits, torch.tensor([0, 1]), 9)[1].shape == (2, 6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_ranks_are_places_in_falling_order(self, dtype):
        logits = torch.randn(6, 400, generator=torch.manual_seed(0)).to(dtype)
        logits[5] = 0.0  # all the likeliest
        which, tokens = torch.tensor([5, 0, 0, 3]), torch.tensor([7, 1, 2, 399])
        expected = [
            sorted(logits[row].tolist(), reverse=True).index(logits[row, token].item()) + 1
            for row, token in zip(which, tokens, strict=True)
        ]
        assert ranks(logits, tokens, which).tolist() == expected and expected[0] == 1
        best = logits[:5].argmax(-1)
        assert ranks(logits[:5], best).tolist() == [1] * 5

    def test_sample_reports_the_same_number(self):
        logits = torch.randn(20, 40, generator=torch.manual_seed(0))
        tokens, logprobs = sample(logits, state_of(mixed_params(20), 40), first_positions(20))
        assert torch.equal(token_logprobs(logits, tokens, 2)[0], logprobs)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_what_was_drawn_tells_the_rest(self, dtype):
        logits = (torch.randn(20, 40, generator=torch.manual_seed(0)) * 5).to(dtype)
        logits[:, 7] = -torch.inf
        which = torch.arange(50) % 20
        tokens, logprobs = sample(
            logits, state_of(mixed_params(50), 40), first_positions(50), logit_rows=which
        )
        ids, best = top_logprobs(logits, tokens, logprobs, 9, which)
        _, _, expected = token_logprobs(logits, tokens, 9, which)
        torch.testing.assert_close(best, expected, rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(best, logits[which].float().log_softmax(-1).gather(1, ids))
        drawn = ids == tokens[:, None]
        assert drawn.sum() > 25
        assert torch.equal(best[drawn], logprobs[drawn.any(-1)])
        assert top_logprobs(logits, tokens, logprobs, 0, which)[0].shape == (50, 0)
        assert top_logprobs(logits, tokens, logprobs, 99, which)[1].shape == (50, 40)


class TestState:
    def test_features_name_what_live_rows_need(self):
        state = SamplingState(8, 50)
        assert state.features() == state.features(0)

        def after(**options):
            state.set_rows([3], [SamplingParams(**options)], [1], [[5, 6]])
            return state.features()

        plain = after(temperature=1)
        assert not plain.filtered
        assert not plain.adjusted
        assert after(top_p=0.5).filtered
        assert after(top_k=3).filtered
        assert not after(top_k=50).filtered
        assert not after(top_k=-1).filtered
        assert not after(temperature=0, top_k=3).filtered
        assert after(min_p=0.1).filtered
        assert after(presence_penalty=1).penalised
        assert after(presence_penalty=1).adjusted
        assert not after(presence_penalty=1).repeats
        assert after(repetition_penalty=2).repeats
        assert after(logit_bias={1: 2.0}).edit_slots == 1
        assert after(logprobs=5).top_logprobs == 5
        assert after(logprobs=0).top_logprobs == 0
        assert after(temperature=1) == plain
        assert hash(after(temperature=1)) == hash(plain)
        assert state.features(3) == SamplingState(8, 50).features()

    def test_moved_rows_sample_alike(self):
        count = 30
        params = mixed_params(count)
        logits = torch.randn(count, 64, generator=torch.manual_seed(5))
        keys = [row_key(9, i, 1) for i in range(count)]
        prompts = [[i, (i * 7) % 64] for i in range(count)]
        state = SamplingState(2 * count, 64, eos_token_ids=(1, 2))
        state.set_rows(range(count), params, keys, prompts)
        before = sample(logits, state, first_positions(count))
        state.move_rows(range(count), range(count, 2 * count))
        state.set_rows(range(count), [SamplingParams(temperature=5)] * count, keys, prompts)
        after = sample(logits, state, first_positions(count), rows=slice(count, 2 * count))
        assert torch.equal(before[0], after[0])
        assert torch.equal(before[1], after[1])

    def test_a_fresh_state_samples_like_the_row(self):
        """First tokens are drawn before the sequence has a row."""
        params = mixed_params(20)
        logits = torch.randn(20, 64, generator=torch.manual_seed(5))
        keys = [row_key(9, i, 1) for i in range(20)]
        prompts = [[i] for i in range(20)]
        state = SamplingState(20, 64, eos_token_ids=(1, 2))
        fresh = state.fresh(params, keys, prompts)
        state.set_rows(range(20), params, keys, prompts)
        assert fresh.features() == state.features()
        expected = sample(logits, state, first_positions(20))
        got = sample(logits, fresh, first_positions(20))
        assert torch.equal(expected[0], got[0])

    def test_end_tokens_differ_by_row(self):
        params = [
            SamplingParams(),
            SamplingParams(stop_token_ids=(5, 6, 7)),
            SamplingParams(ignore_eos=True),
            SamplingParams(ignore_eos=True, stop_token_ids=(9,)),
        ]
        state = state_of(params, 50, eos_token_ids=(1, 2))

        def ends(token: int) -> list[bool]:
            return state.is_end(torch.full((4,), token), slice(0, 4)).tolist()

        assert ends(1) == ends(2) == [True, True, False, False]
        assert ends(6) == [False, True, False, False]
        assert ends(9) == [False, False, False, True]
        assert ends(0) == [False] * 4

    def test_reused_rows_forget(self):
        state = state_of(
            [SamplingParams(logit_bias={3: 100.0}, stop_token_ids=(4,), logprobs=3)] * 2, 50
        )
        state.set_rows([0, 1], [SamplingParams()] * 2, [1, 2], [[0]] * 2)
        fresh = SamplingState(2, 50)
        fresh.set_rows([0, 1], [SamplingParams()] * 2, [1, 2], [[0]] * 2)
        logits = torch.randn(2, 50, generator=torch.manual_seed(1))
        assert state.features() == fresh.features()
        full = state_of([SamplingParams(logit_bias={3: 100.0})] * 2, 50).features()
        expected = sample(logits, fresh, first_positions(2))
        assert torch.equal(sample(logits, state, first_positions(2))[0], expected[0])
        got = sample(logits, state, first_positions(2), features=full)
        assert torch.equal(got[0], expected[0])
        assert not state.is_end(torch.tensor([4, 4]), slice(0, 2)).any()

    def test_refuses_what_the_vocabulary_cannot_serve(self):
        state = SamplingState(1, 50)
        state.check(SamplingParams(logit_bias={49: -math.inf}))
        with pytest.raises(RequestError, match="token 50"):
            state.check(SamplingParams(logit_bias={50: 1.0}))
        with pytest.raises(RequestError, match="tokenizer"):
            state.check(SamplingParams(bad_words=("no",)))


def test_uniform_is_what_the_draw_uses():
    """The token of a known distribution follows from the key and position alone."""
    state = state_of([SamplingParams()] * 50, 4, seed=11)
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(50, 4)
    positions = torch.arange(50)
    tokens, _ = sample(logits, state, positions)
    numbers = uniform(state.keys, positions)
    expected = torch.bucketize(numbers, torch.tensor([0.1, 0.3, 0.6]), right=True)
    assert torch.equal(tokens, expected)
