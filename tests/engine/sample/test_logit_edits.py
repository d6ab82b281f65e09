"""Biases, bad words and min_tokens as edits: conditions, growth, and who spells a word how."""

import math
from functools import partial

import pytest
import torch

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.sample.logit_edits import Edit, LogitEdits, bad_word_ids, edits_of
from sharegen.kernels.transfer import send
from tests.engine.tokenizers_for_tests import byte_level, sentence_piece

to_cpu = partial(send, torch.device("cpu"))


def edited(edits: LogitEdits, positions: list[int], outputs: list[list[int]] | None = None):
    """What is added to zero logits of eight tokens in every row."""
    count = len(positions)
    history = None
    if outputs is not None:
        history = torch.full((count, 9), -1)
        for row, output in zip(history, outputs, strict=True):
            row[: len(output)] = torch.tensor(output, dtype=torch.int64)
    logits = torch.zeros(count, 8)
    return edits.apply(logits, slice(0, count), torch.tensor(positions), history)


def test_no_edits_take_no_room():
    edits = LogitEdits(3, to_cpu)
    edits.set_rows([0, 1], [[], []], [[1], [2]])
    assert (edits.num_slots, edits.context) == (0, 0)


def test_a_bias_holds_always_and_min_tokens_until_then():
    edits = LogitEdits(2, to_cpu)
    edits.set_rows([0, 1], [[Edit(3, 2.0)], [Edit(5, -math.inf, until=2)]], [[0], [0]])
    for position in (0, 1, 2, 50):
        added = edited(edits, [position, position])
        assert added[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 0]
        assert added[1, 5] == (-math.inf if position < 2 else 0)


def test_a_bad_word_is_barred_after_its_beginning_across_prompt_and_output():
    edits = LogitEdits(5, to_cpu)
    word = Edit(4, -math.inf, prefix=(1, 2, 3))
    edits.set_rows(range(5), [[word]] * 5, [[9, 1, 2, 3], [1, 2], [1], [7], [3]])
    outputs: list[list[int]] = [[], [3], [2, 3], [1, 2, 3], [1, 2, 2]]
    added = edited(edits, [len(output) for output in outputs], outputs)
    assert torch.isinf(added[:4, 4]).all()
    assert (added[4] == 0).all()
    assert (added[:, :4] == 0).all()


def test_history_beyond_the_position_is_not_read():
    edits = LogitEdits(1, to_cpu)
    edits.set_rows([0], [[Edit(4, -math.inf, prefix=(1, 2))]], [[1]])
    assert edited(edits, [0], [[2, 2]])[0, 4] == 0
    assert torch.isinf(edited(edits, [1], [[2, 5]])[0, 4])


def test_rows_keep_their_edits_when_others_need_more_room():
    edits = LogitEdits(4, to_cpu)
    edits.set_rows([0], [[Edit(4, -math.inf, prefix=(1,))]], [[1]])
    many = [Edit(token, 1.0, prefix=tuple(range(token))) for token in range(6)]
    edits.set_rows([1], [many], [[0, 1, 2, 3, 4]])
    edits.set_rows([2, 3], [[], [Edit(7, 3.0)]], [[5], []])
    assert edits.num_slots == 8
    assert edits.context == 8
    added = edited(edits, [0] * 4)
    assert torch.isinf(added[0, 4])
    assert added[1].tolist() == [1, 0, 0, 0, 0, 1, 0, 0]
    assert (added[2] == 0).all()
    assert added[3, 7] == 3


def test_a_row_forgets_what_stood_there_before():
    edits = LogitEdits(2, to_cpu)
    edits.set_rows([0, 1], [[Edit(4, 5.0)]] * 2, [[1]] * 2)
    edits.set_rows([0], [[]], [[1]])
    edits.move_rows(torch.tensor([0]), torch.tensor([1]))
    assert (edited(edits, [0, 0]) == 0).all()


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
def test_bad_words_are_barred_at_the_start_and_after_a_space(make):
    tokenizer = make()
    spelled = bad_word_ids(tokenizer, [" answer", "answer"])
    assert 1 <= len(spelled) <= 2
    texts = {tokenizer.decode(list(ids)).strip() for ids in spelled}
    assert texts == {"answer"}
    sentence = tokenizer.encode("The answer", add_special_tokens=False)
    assert any(tuple(sentence[-len(ids) :]) == ids for ids in spelled)


def test_edits_of_a_request():
    params = SamplingParams(
        logit_bias={3: 1.5}, bad_words=("x",), min_tokens=2, stop_token_ids=(9,), max_tokens=5
    )

    class OneToken:
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [1] if text.startswith(" ") else [6]

    got = edits_of(params, OneToken(), (1, 2), 8)
    # 1 is an EOS token, which a bad word does not bar; 9 is outside the vocabulary.
    assert got == [
        Edit(3, 1.5),
        Edit(6, -math.inf),
        Edit(1, -math.inf, until=2),
        Edit(2, -math.inf, until=2),
    ]
    deaf = SamplingParams(min_tokens=2, ignore_eos=True)
    assert edits_of(deaf, None, (1, 2), 8) == []
