"""Parts of a model on several ranks: they draw the tokens that one process draws."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.model import interface
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.partition import DIVISIBLE
from sharegen.engine.model.ranks import Ranks
from sharegen.engine.model.self_check import DenseContext
from tests.engine.model.test_partition import FOURTEEN
from tests.engine.rank_processes import on_ranks
from tests.engine.tiny_models import TINY, make_tiny

NEW_TOKENS = 8
PROMPTS = ([5, 17, 93, 40, 8, 61, 99, 23, 71, 12, 3, 55], [90, 4, 33], [7])
CUT = sorted(name for name, (kind, _) in TINY.items() if kind in DIVISIBLE)


def greedy(loaded: LoadedModel) -> tuple[list[list[int]], torch.Tensor]:
    """(tokens of each prompt, the logits that the last ones were drawn from)."""
    rows = [list(prompt) for prompt in PROMPTS]
    for _ in range(NEW_TOKENS):
        sequence = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])
        position = torch.cat([torch.arange(len(row)) for row in rows])
        ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
        context = DenseContext(loaded.layers, sequence, position)
        with torch.inference_mode(), interface.active(context):
            logits = loaded.forward(torch.tensor([*chain(*rows)]), position, ends)
        for row, token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(token)
    return rows, logits.clone()


def greedy_of_parts(ranks: Ranks, folder: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        found[name] = greedy(load_model(f"{folder}/{name}", device="cpu", ranks=ranks))
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    for name in CUT:
        make_tiny(name).save_pretrained(folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("size", "names"), [(2, CUT), (4, list(FOURTEEN))], ids=["two", "four"])
def test_parts_draw_the_tokens_of_one_process(saved: Path, size: int, names: list[str]) -> None:
    parts = on_ranks(size, greedy_of_parts, str(saved), names)
    for name in names:
        whole = load_model(saved / name, device="cpu")
        tokens, logits = greedy(whole)
        for part in parts:
            assert part[name][0] == tokens, name
            assert torch.equal(part[name][1], parts[0][name][1]), name
            assert (part[name][1] - logits).abs().max() <= 1e-4, name
