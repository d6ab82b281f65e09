"""What an engine counts."""

from __future__ import annotations

from sharegen.engine.core.request import SamplingParams
from tests.engine.jobs import forest, loaded, make_engine, requests_of, run

SAMPLED = SamplingParams(temperature=1.0, max_tokens=10, ignore_eos=True)
PROMPT = forest()[0]


def test_stats_add_up_over_calls() -> None:
    engine = make_engine(loaded("llama"))
    requests = requests_of([PROMPT, PROMPT[:9]], SAMPLED, samples=2)
    for calls in (1, 2):
        run(engine, requests)
        stats = engine.stats
        assert stats.prompt_tokens_asked == calls * 2 * (len(PROMPT) + 9)
        assert stats.prompt_tokens_computed == calls * len(PROMPT)
        assert (stats.completions, stats.requests_done) == (calls * 4, calls * 2)
        assert stats.generated_tokens == calls * 40
        assert stats.decode_steps == calls * 9
    assert 0 < stats.peak_blocks <= stats.blocks_total == 400
    assert stats.prefill_seconds > 0 and stats.decode_seconds > 0
    assert 0 <= stats.waited_seconds < stats.prefill_seconds + stats.decode_seconds
