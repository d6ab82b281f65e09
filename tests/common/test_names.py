from __future__ import annotations

from sharegen.common.names import nearest


def test_nearest() -> None:
    assert nearest("temprature", ["temperature", "top_p"]) == "temperature"
    assert nearest("zzz", ["temperature"]) is None
    assert nearest("best_of", ["stop", "seed"]) is None
