"""Orders are obeyed one after another, each when it is time, and not for who has left."""

from __future__ import annotations

import pytest

from sharegen.serve.orders import Order, Orders


def test_they_are_obeyed_in_turn_when_it_is_time() -> None:
    orders, said, is_time = Orders(), [], []
    first = Order(lambda: said.append("first"), lambda: bool(is_time))
    second = Order(lambda: said.append("second") or 7)
    for each in (first, second):
        orders.put(each)
    assert not orders.wait
    orders.obey()
    assert orders.wait and not said
    is_time.append(True)
    orders.obey()
    assert said == ["first", "second"] and not orders.wait and second.done.result() == 7


def test_one_that_nobody_waits_for_is_dropped() -> None:
    orders, said = Orders(), []
    gone = Order(lambda: said.append("gone"), lambda: False)
    orders.put(gone)
    orders.obey()
    assert gone.done.cancel()
    orders.put(Order(lambda: said.append("next")))
    orders.obey()
    assert said == ["next"] and not orders.wait


def test_errors_are_whoever_gave_the_order() -> None:
    orders = Orders()
    wrong, late = Order(lambda: 1 / 0), Order(lambda: None)
    orders.put(wrong)
    orders.obey()
    with pytest.raises(ZeroDivisionError):
        wrong.done.result()
    orders.put(late)
    orders.fail(ValueError("it has ended"))
    with pytest.raises(ValueError, match="it has ended"):
        late.done.result()
