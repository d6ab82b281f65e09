"""Which way of multiplying gives a row the same bits, however many rows there are: tried out.

A library chooses by the shape of a product how it goes about it, and where rows are few it may
split the sums. Nobody says when: so each number of rows is tried with random numbers, and the bits
are compared. In the same way it is seen whether the place of a row among the others matters.

Two orders of a sum in float32 give other 16 bits in one result of some thousand, so that a layer of
few outputs, such as a router, would not show what it does in a trial of some thousand. Therefore
every other line is such that its products cancel each other, in pairs far from each other: what is
left of their sum is its rounding, which any other order changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.nn.functional import linear

from sharegen.engine.model.steady.ways import Multiply, ProductShape, Way, Ways

_LINES = 97  # different rows, which come again and again: no tile has a multiple of so many
_MOST_BYTES = 1 << 29  # of a result
_LARGER = 2  # numbers of rows that the library may be given instead of fewer
_SCALES = 5  # the powers of two up to which pairs are larger or smaller

USUAL_ROWS = 8192
"""Most rows of those whose bits count. Every engine has all of these tried, however few rows it
runs: or engines of other sizes would find other bits to be those of most numbers of rows."""
_BIAS = 2.0**-15  # about what rounding leaves of a sum, which a larger bias would hide

Kernels = Callable[[int], Iterable[Multiply]]
Timer = Callable[[Callable[[], object]], float]


def try_ways(
    shape: ProductShape,
    sizes: Sequence[int],
    kernels: Kernels,
    timer: Timer,
    library: Multiply = linear,
) -> Ways:
    """Choose a way for each number of rows, so that a row has the same bits with all of them.

    The bits are those that the library gives for most numbers of rows, up to USUAL_ROWS. Where it
    gives others, a kernel is taken that gives these, or a larger number of rows, or a smaller one,
    part by part: whichever is fastest. So it holds wherever the place of a row does not matter to
    the library.

    Args:
        sizes: numbers of rows, in rising order. Those whose results would take too much memory are
            left out, but for the first.
        kernels: other ways that are worth a trial for a number of rows.
        timer: says how long a call takes.
        library: what there is to multiply with.
    """
    most = max(1, _MOST_BYTES // (shape.width * shape.dtype.itemsize))
    sizes = [size for size in sizes if size <= most] or list(sizes[:1])
    product = _Product(shape, sizes[-1])
    found = {size: product.bits(Way(library, size), size) for size in sizes}
    usual = [size for size in sizes if size <= USUAL_ROWS] or list(sizes[:1])
    of_usual = [bits for size in usual if (bits := found[size]) is not None]
    expected = _most_frequent(of_usual, usual[-1])
    if expected is None:  # the place of a row matters to the library: ours is to have the word
        ours = next(iter(kernels(usual[-1])), None)
        expected = None if ours is None else product.bits(Way(ours), usual[-1])
    same = [size for size, bits in found.items() if _agree(bits, expected)]
    by_rows: dict[int, Way] = {}
    differing = []
    for size in sizes:
        if size in same:
            by_rows[size] = Way(library, size)
            continue
        others = [Way(kernel) for kernel in kernels(size)]
        others += [Way(library, more) for more in same if more > size][:_LARGER]
        others += [Way(library, less) for less in same if size % less == 0][-1:]
        others += [Way(library, less) for less in same if less < size][-1:]
        equal = [way for way in others if _agree(product.bits(way, size), expected)]
        if not equal:
            differing.append(size)
        by_rows[size] = product.fastest(equal or [Way(library, size)], size, timer)
    return Ways(by_rows, tuple(differing))


class _Product:
    """One product of random numbers, of as many rows as one likes up to `most`."""

    def __init__(self, shape: ProductShape, most: int) -> None:
        generator = torch.Generator(shape.device).manual_seed(0)

        def drawn(*sizes: int) -> torch.Tensor:
            how = {"generator": generator, "device": shape.device, "dtype": shape.dtype}
            return torch.randn(*sizes, **how)  # type: ignore[call-overload,no-any-return]

        lines, self._weight = drawn(_LINES, shape.size), drawn(shape.width, shape.size)
        order = torch.randperm(shape.size, generator=generator, device=shape.device)
        pairs = shape.size // 2
        one, other, left = order.split([pairs, pairs, shape.size % 2])
        lines[:, one] *= torch.exp2(drawn(pairs).clamp(-1, 1).mul(_SCALES).round())
        lines[::2, other] = -lines[::2, one]
        lines[::2, left] = 0.0
        self._weight[:, other] = self._weight[:, one]
        self._which = torch.arange(most, device=shape.device) % _LINES
        self._x = lines[self._which]
        self._bias = drawn(shape.width).mul_(_BIAS) if shape.has_bias else None

    def bits(self, way: Way, size: int) -> torch.Tensor | None:
        """The results of the different rows among `size`; None where their place matters."""
        out = self._times(way, size)
        is_steady = torch.equal(out[_LINES:], out[self._which[_LINES:size]])
        return out[:_LINES].clone() if is_steady else None

    def fastest(self, ways: Sequence[Way], size: int, timer: Timer) -> Way:
        if len(ways) == 1:
            return ways[0]
        return min(ways, key=lambda way: timer(lambda: self._times(way, size)))

    def _times(self, way: Way, size: int) -> torch.Tensor:
        return way(self._x[:size], self._weight, self._bias)


def _agree(bits: torch.Tensor | None, expected: torch.Tensor | None) -> bool:
    """Whether both are the same as far as both go."""
    if bits is None or expected is None:
        return False
    count = min(len(bits), len(expected))
    return torch.equal(bits[:count], expected[:count])


def _most_frequent(found: Iterable[torch.Tensor], most: int) -> torch.Tensor | None:
    """Return the bits that most sizes agree on, as the largest of these sizes gave them.

    Sizes whose rows are not all there do not count. None where there are no others.
    """
    kinds: list[tuple[torch.Tensor, list[int]]] = []
    for bits in found:
        if len(bits) < min(most, _LINES):
            continue
        counts = next((counts for kind, counts in kinds if torch.equal(kind, bits)), None)
        if counts is None:
            kinds.append((bits, [1]))
        else:
            counts[0] += 1
    return max(reversed(kinds), key=lambda kind: kind[1][0])[0] if kinds else None
