"""Penalties by their definitions, and which prompt tokens a row remembers."""

from functools import partial

import torch

from sharegen.engine.sample.penalties import PromptTokens, penalise
from sharegen.kernels.transfer import send

to_cpu = partial(send, torch.device("cpu"))


def test_definitions():
    logits = torch.tensor([[2.0, -2.0, 1.0, 3.0, -1.0]])
    in_prompt = torch.tensor([[True, True, False, False, False]])
    history = torch.tensor([[3, 3, 4, -1, -1]])
    got = penalise(
        logits, in_prompt, history, *(torch.tensor([value]) for value in (2.0, 0.25, 0.5))
    )
    # Halved or doubled where seen at all; 0.25 a time and 0.5 once where in the output.
    assert got.tolist() == [[1.0, -4.0, 1.0, 1.5 - 0.5 - 0.5, -2.0 - 0.25 - 0.5]]


def test_neutral_rows_stay_bit_for_bit():
    logits = torch.randn(4, 50, generator=torch.manual_seed(0))
    seen = torch.ones(4, 50, dtype=torch.bool)
    history = torch.arange(8).view(4, 2)
    one, zero = torch.ones(4), torch.zeros(4)
    assert torch.equal(penalise(logits, seen, history, one, zero, zero), logits)


def test_no_output_yet():
    logits = torch.tensor([[2.0, -2.0, 1.0]])
    seen = torch.tensor([[False, True, False]])
    two, zero = torch.tensor([2.0]), torch.tensor([0.0])
    assert penalise(logits, seen, None, two, zero, two).tolist() == [[2.0, -4.0, 1.0]]
    assert torch.equal(penalise(logits, None, None, two, two, two), logits)


def test_prompt_tokens_take_no_room_before_they_are_needed():
    prompts = PromptTokens(3, 6, to_cpu)
    prompts.set_rows([], [])
    prompts.move_rows(torch.tensor([0]), torch.tensor([1]))
    assert prompts.seen is None


def test_prompt_tokens_are_replaced_and_moved():
    prompts = PromptTokens(3, 6, to_cpu)
    prompts.set_rows([0, 2], [[1, 1, 5, 99], [0]])
    assert prompts.seen.nonzero().tolist() == [[0, 1], [0, 5], [2, 0]]
    prompts.set_rows([0], [[2]])
    assert prompts.seen.nonzero().tolist() == [[0, 2], [2, 0]]
    prompts.move_rows(torch.tensor([2]), torch.tensor([1]))
    assert prompts.seen.nonzero().tolist() == [[0, 2], [1, 0], [2, 0]]
    prompt = [3, 3, 4]
    prompts.set_rows([0, 2, 1], [prompt, [5], prompt])
    assert prompts.seen.nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4], [2, 5]]
    prompts.set_rows([0, 1], [[2], [0]])
    prompts.set_rows([2], [[0]])
    prompts.set_rows([1], [[]])
    assert prompts.seen.nonzero().tolist() == [[0, 2], [2, 0]]
