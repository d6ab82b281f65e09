"""Which engine an arriving request goes to, and what becomes of it when that one dies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.parallel.messages import CompletionMessage
from sharegen.engine.parallel.routing import FEW, SLACK, Routing, _names

BLOCK = 4
HEAD = list(range(1, 21))  # five blocks that all prompts may share


def asked(key: int, prompt: list[int], n: int = 1) -> Request:
    return Request(key, prompt, SamplingParams(n=n, max_tokens=4), range(n))


def drawn(key: int, sample: int = 0) -> CompletionMessage:
    return CompletionMessage(key, sample, [1], None, "length", None, 0.0, None, None, None)


def routing(workers: str, blocks: int = 1000) -> Routing[str]:
    made = Routing[str](BLOCK)
    for worker in workers:
        assert not made.join(worker, blocks)
    return made


def sent(made: Routing[str], request: Request) -> str | None:
    return made.route(made.add(request, False))


def test_groups_stay_together_and_are_spread() -> None:
    made = routing("ab")
    for key in range(2):  # so that nobody is idle, and both know what all share
        sent(made, asked(key, [90 + key] * 8))
        made._places["ab"[key]].learn(list(_names(asked(key, HEAD).tokens, BLOCK)))
    placed = {
        group: [sent(made, asked(100 * group + i, [*HEAD, *[100 + group] * 8])) for i in range(16)]
        for group in range(1, 9)
    }
    assert all(len(set(workers)) == 1 for workers in placed.values())
    loads = [sum(workers.count(name) for workers in placed.values()) for name in "ab"]
    assert abs(loads[0] - loads[1]) <= SLACK


def test_nobody_stays_idle_for_the_sake_of_a_prefix() -> None:
    made = routing("ab")
    workers = [sent(made, asked(key, HEAD)) for key in range(FEW + 2)]
    assert workers == ["a"] * FEW + ["b"] * 2  # who then knows it, too
    for key in range(FEW):
        made.finish(drawn(key))
    assert sent(made, asked(100, HEAD)) == "a"


def test_what_was_sent_long_ago_is_known_no_more() -> None:
    made = routing("ab", blocks=5)
    assert sent(made, asked(0, HEAD)) == "a" and sent(made, asked(1, [77] * 20)) == "b"
    assert sent(made, asked(2, HEAD)) == "a"
    made.finish(drawn(1))
    sent(made, asked(3, [78] * 20)), sent(made, asked(4, [79] * 20))
    made.finish(drawn(3)), made.finish(drawn(4))
    assert sent(made, asked(5, [77] * 20)) == "b"


def test_what_a_dead_one_has_left_goes_on_once() -> None:
    made = routing("ab")
    half, told = asked(0, [7] * 8, n=2), made.add(asked(1, [8] * 8), True)
    assert sent(made, half) == "a" and made.route(told) == "b"
    assert made.finish(drawn(0)) is not None and made.finish(drawn(0)) is None
    [left] = made.leave("a")
    assert left.may_go_on and list(left.rest().samples) == [1]
    assert made.route(left) == "b"
    assert made.tell(1)
    again = made.leave("b")
    assert [each.may_go_on for each in again] == [False, False]  # twice; and half of it is told
    assert made.route(left) is None and made.join("c", 5) == again
    assert made.drop(0) is left and made.drop(0) is None and not made.tell(0)
    assert len(made) == 1 and 1 in made


@given(st.lists(st.tuples(st.sampled_from("+-aljd"), st.integers(0, 9)), max_size=60))
def test_loads_are_what_is_left(steps: list[tuple[str, int]]) -> None:
    """Requests come, end, are dropped, and workers come and go: each is somebody's, and counted."""
    made, there = routing("01"), {"0", "1"}
    for number, (step, value) in enumerate(steps):
        worker = str(value)
        if step == "+":
            sent(made, asked(number, [value] * (4 + value), n=1 + value % 3))
        elif step == "-":
            made.finish(drawn(value))
        elif step == "d":
            made.drop(value)
        elif step == "j" and worker not in there:
            there.add(worker)
            for each in made.join(worker, 50):
                assert made.route(each) in there
        elif step == "l" and worker in there:
            there.remove(worker)
            for each in made.leave(worker):
                assert (made.route(each) in there) == bool(there)
        loads = dict.fromkeys(there, 0)
        for each in made._routed.values():
            assert each.left and (each.worker in there if there else each.worker is None)
            if each.worker is not None:
                loads[each.worker] += each.left
        assert {name: place.load for name, place in made._places.items()} == loads
