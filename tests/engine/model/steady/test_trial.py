"""Which way of multiplying is chosen, with libraries that are made to choose as real ones do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sharegen.engine.model.steady import trial
from sharegen.engine.model.steady.trial import try_ways
from sharegen.engine.model.steady.ways import Multiply, ProductShape, Way, Ways

CPU = torch.device("cpu")
SHAPE = ProductShape(64, 24, torch.float32, True, CPU)
SIZES = (8, 16, 32, 64, 128, 192, 256, 320)


def in_order(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, parts: int = 1
) -> torch.Tensor:
    """Sums each result's products one after another, or `parts` of them that are then added up."""
    sums = []
    pieces = (each.tensor_split(parts, 1) for each in (x, weight))
    for of_x, of_weight in zip(*pieces, strict=True):
        total = torch.zeros(len(x), len(weight))
        for k in range(of_x.shape[1]):
            total += of_x[:, k, None] * of_weight[:, k]
        sums.append(total)
    out = torch.stack(sums).cumsum(0)[-1]
    return out if bias is None else out + bias


class Library:
    """Splits the sums of some numbers of rows, and counts what it is asked for."""

    def __init__(self, splits: Callable[[int], bool]) -> None:
        self.splits, self.asked = splits, []

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        self.asked.append(len(x))
        return in_order(x, weight, bias, 2 if self.splits(len(x)) else 1)


def ours(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return in_order(x, weight, bias)


def by_place(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A library whose last rows have other sums."""
    out = in_order(x, weight, bias)
    out[-1] = in_order(x[-1:], weight, bias, 4)[0]
    return out


def tried(
    library: Multiply, kernels: list[Multiply], timer: Callable[[Callable[[], object]], float]
) -> Ways:
    return try_ways(SHAPE, SIZES, lambda rows: kernels, timer, library)


def check(ways: Ways) -> None:
    """That all rows of all sizes are what they are alone, also of sizes that were not tried."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(700, 64, generator=generator)
    weight, bias = torch.randn(24, 64, generator=generator), torch.randn(24, generator=generator)
    whole = ways.multiply(x, weight, bias)
    for count in (1, 7, 8, 31, 65, 192, 319, 320, 321):
        assert torch.equal(ways.multiply(x[:count], weight, bias), whole[:count])


def equally(call: Callable[[], object]) -> float:
    call()
    return 1.0


def test_a_library_that_never_splits_is_left_alone() -> None:
    library = Library(lambda rows: False)
    ways = tried(library, [ours], equally)
    assert ways == Ways({size: Way(library, size) for size in SIZES})
    check(ways)


def test_our_kernel_takes_the_few_rows_whose_sums_are_split() -> None:
    library = Library(lambda rows: rows <= 64 or rows == 192)
    ways = tried(library, [ours], equally)
    assert [size for size, way in ways.by_rows.items() if way == Way(ours)] == [8, 16, 32, 64, 192]
    assert not ways.differing
    check(ways)


def test_more_rows_where_no_kernel_gives_the_bits_or_where_they_are_faster() -> None:
    library = Library(lambda rows: rows <= 64)
    ways = tried(library, [], equally)
    assert [way.rows for way in ways.by_rows.values()] == [128] * 4 + list(SIZES[4:])
    check(ways)

    def for_larger(call: Callable[[], object]) -> float:
        library.asked.clear()
        call()
        return -max(library.asked, default=0)

    assert tried(library, [ours], for_larger).by_rows[8] == Way(library, 192)


def test_a_kernel_of_other_bits_is_not_taken() -> None:
    def other(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return in_order(x, weight, bias, 8)

    library = Library(lambda rows: rows <= 64)
    assert tried(library, [other, ours], equally).by_rows[8] == Way(ours)


def test_where_places_matter_to_the_library_all_is_our_kernel() -> None:
    ways = tried(by_place, [ours], equally)
    assert set(ways.by_rows.values()) == {Way(ours)}
    check(ways)


def test_larger_engines_find_the_bits_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though of all their numbers of rows most have other sums."""
    monkeypatch.setattr(trial, "USUAL_ROWS", 64)
    x, weight = torch.randn(64, 64), torch.randn(24, 64)
    found = []
    for sizes in (SIZES[:4], SIZES):
        library = Library(lambda rows: rows > 64)
        ways = try_ways(SHAPE, sizes, lambda rows: [ours], equally, library)
        assert not ways.differing
        found.append(ways.multiply(x, weight, None))
    assert torch.equal(*found)


def test_what_nothing_mends_is_told() -> None:
    assert tried(by_place, [], equally).differing == SIZES


def test_more_rows_than_hold_come_part_by_part() -> None:
    ways = tried(Library(lambda rows: rows == 320), [], equally)
    assert not ways.differing
    assert [way.rows for way in ways.by_rows.values()] == [*SIZES[:7], 64]
    check(ways)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("size", "width"), [(512, 16), (1024, 1), (255, 8), (64, 4)])
def test_other_sums_show_where_outputs_are_few(dtype: torch.dtype, size: int, width: int) -> None:
    """As of routers: random numbers alone show them in one result of some thousand."""
    shape = ProductShape(size, width, dtype, True, CPU)

    def library(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        given = (each if each is None else each.float() for each in (x, weight, bias))
        return in_order(*given, 2 if len(x) < 100 else 1).to(dtype)  # type: ignore[arg-type]

    def padded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = torch.nn.functional.pad(x, (0, 0, 0, max(0, 100 - len(x))))
        return library(rows, weight, bias)[: len(x)]

    ways = try_ways(shape, (16, 64, 128, 256), lambda rows: [padded], equally, library)
    assert [way.multiply for way in ways.by_rows.values()] == [padded] * 2 + [library] * 2
    assert not ways.differing


def test_results_that_take_too_much_memory_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_MOST_BYTES", 128 * 24 * 4)
    ways = tried(Library(lambda rows: False), [], equally)
    assert tuple(ways.by_rows) == (8, 16, 32, 64, 128)
    check(ways)
    monkeypatch.setattr(trial, "_MOST_BYTES", 1)
    assert tuple(tried(Library(lambda rows: False), [], equally).by_rows) == (8,)
