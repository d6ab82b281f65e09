"""The engines' side: what ends it is told to all, those who come too late included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.parallel.dispatcher import Dispatcher
from sharegen.engine.parallel.messages import Setting
from sharegen.serve.engine_loop import EngineLoop
from sharegen.serve.ticket import News, Ticket
from tests.engine.parallel.forked import forked
from tests.tiny import save_tiny_model

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Dispatcher]:
    folder = save_tiny_model(tmp_path / "tiny")
    config = EngineConfig(kv_cache_memory=8 << 20, max_sequences=16)
    found = Dispatcher([Setting(str(folder), None, config, device="cpu", threads=1)], forked())
    yield found
    found.close()


def ticket(key: int, prompt: list[int], streams: bool = False) -> Ticket:
    return Ticket([Request(key, prompt, PARAMS, range(2))], streams)


def test_what_comes_is_drawn_and_what_cannot_run_is_said(engines: Dispatcher) -> None:
    loop = EngineLoop(engines, seed=0)
    told: dict[Ticket, News] = {}

    def tell(news: list[tuple[Ticket, News]]) -> None:
        for one, each in news:
            told.setdefault(one, News()).add(each)

    loop.tell, loop.ends = tell, True  # it ends with what has come
    good, stream, bad, gone = (
        ticket(0, [5] * 9),
        ticket(1, [5] * 9, True),
        ticket(2, [10**6]),
        ticket(3, [7]),
    )
    for each in (good, stream, bad, gone):
        loop.submit(each)
    loop.cancel(gone)
    loop.run()
    assert sorted(each.sample for each in told[good].finished) == [0, 1]
    assert not told[good].grown
    whole = {(1, each.sample): each.token_ids for each in told[stream].finished}
    assert {
        place: len(grown.token_ids) for place, grown in told[stream].grown.items()
    } == dict.fromkeys(whole, 3)
    assert all(whole[place][:3] == grown.token_ids for place, grown in told[stream].grown.items())
    assert "vocabulary" in str(told[bad].error) and not told[bad].is_ours
    assert gone not in told
    late = ticket(4, [5])
    loop.submit(late)
    assert told[late].is_ours and told[late].error == "the server has ended"


def test_the_engines_end_is_told_and_raised(
    engines: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, told = EngineLoop(engines, seed=0), []
    loop.tell = told.extend
    monkeypatch.setattr(engines, "step", lambda: 1 / 0)
    asked = ticket(0, [5])
    loop.submit(asked)
    with pytest.raises(ZeroDivisionError):
        loop.run()
    [(one, news)] = told
    assert one is asked and news.is_ours and news.error == "the engine has ended: ZeroDivisionError"
