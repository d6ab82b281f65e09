"""What the rows have drawn: in arrays while a sample has its row, else in a list of its own."""

from __future__ import annotations

import numpy as np

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.row_outputs import RowOutputs
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


class FewStops:
    """Stop strings of which these tokens may be the last."""

    def __init__(self, *tokens: int) -> None:
        self.harmless: set[int] = set()
        self.tokens = tokens

    def may_complete(self, token: int) -> bool:
        return token in self.tokens


def outputs() -> RowOutputs:
    made = RowOutputs(4)
    made.widen(3)
    made.begin(0, [7], -1.0, 9, None)
    made.begin(2, [8, 9], -2.0, 3, FewStops(5))
    made.begin(3, [6], 0.0, 9, FewStops(4))
    return made


def take(
    made: RowOutputs, index: list[int], left: list[int], tokens: list[int], logprob: float = -0.5
) -> tuple[np.ndarray, np.ndarray]:
    return made.take(
        np.array(index, dtype=np.int32), left, np.array(tokens), np.full(len(index), logprob)
    )


def test_a_step_adds_to_the_rows_whose_next_token_it_drew() -> None:
    made = outputs()
    rows, without = take(made, [1, 0, 2, 5], [], [1, 2, 3, 4])
    assert rows.tolist() == [0, 2] and without.tolist() == []
    assert [made.tokens(row) for row in (0, 2, 3)] == [[7, 1], [8, 9, 3], [6]]
    assert [made.logprob(row) for row in (0, 2, 3)] == [-1.5, -2.5, 0.0]
    rows, _ = take(made, [2, -1, -1, 1], [0], [1, 2, 3, 4])
    assert rows.tolist() == [3], "who was in row 0 has left, who sits out got nothing"
    rows, without = take(made, [2], [], [1], float("nan"))
    assert rows.tolist() == [] and without.tolist() == [0] and made.count(0) == 2


def test_a_token_may_end_its_row_by_itself_by_the_limit_or_by_its_own_stop_strings() -> None:
    made = outputs()
    tokens, ended = np.array([5, 0, 1, 5]), np.zeros(4, dtype=np.bool_)
    rows, _ = take(made, [1, -1, 2, 1], [], tokens.tolist())
    assert made.may_have_ended(rows, tokens, ended) == [2], "a third token is its last"
    made = outputs()
    tokens = np.array([4, 0, 5, 4])
    rows, _ = take(made, [1, -1, 2, 1], [], tokens.tolist())
    assert made.may_have_ended(rows, tokens, ended) == [2, 3]
    ended[0] = True
    assert made.may_have_ended(rows, tokens, ended) == [0, 2, 3]


def test_wider_rows_and_those_that_move_keep_what_they_have() -> None:
    made = outputs()
    made.widen(100)
    made.end(0)
    made.move(2, 0)
    assert made.tokens(0) == [8, 9] and made.logprob(0) == -2.0 and made.token(0, -1) == 9
    rows, _ = take(made, [2, 0, 2], [], [1, 2, 3])
    assert rows.tolist() == [0]


def rows_of(count: int, streams: bool = False) -> tuple[BatchRows, list[Sequence]]:
    made = BatchRows(4, 16, 0, lambda rows: rows, StateSlots(), streams=streams)
    made.make_wide(2)
    [leaf] = PrefixTree(16).insert([[1] * 20])
    params = SamplingParams(max_tokens=30)
    group = SequenceGroup(Request(0, [1] * 20, params, range(count)), leaf, 100)
    sequences = [Sequence(group, sample, 5, -1.0) for sample in range(count)]
    for sequence in sequences:
        made.admit(sequence, [sequence.sample + 1], (0, 0))
    made._layout_changed = False  # whose nodes lie nowhere
    return made, sequences


def test_what_a_step_drew_for_a_sample_that_has_left_its_row_is_still_its_own() -> None:
    made, sequences = rows_of(3)
    step = made.next_step([], {})
    made.evict(sequences[1])
    made.admit(sequences[1], [9], (0, 0))  # the same row, and not what was launched
    made.evict(sequences[2])
    made.landed(step)
    assert list(made.apart(step)) == [(1, sequences[1]), (2, sequences[2])]
    assert sequences[2].tokens == [5] and sequences[2].rows is None
    sequences[2].add(6, -1.0)
    assert sequences[2].tokens == [5, 6] and sequences[2].cumulative_logprob == -2.0


def test_where_tokens_are_asked_for_all_the_time_each_sample_has_its_own_list() -> None:
    made, sequences = rows_of(2, streams=True)
    assert all(sequence.tokens is sequence.tokens for sequence in sequences)
    step = made.next_step([], {})
    assert list(made.apart(step)) == [(0, sequences[0]), (1, sequences[1])]
    assert made.outputs.take(step.index, step.left, np.array([1, 2]), np.zeros(2))[0].size == 0
