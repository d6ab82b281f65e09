"""Tensors of a checkpoint of which nothing is read yet.

transformers renames, stacks, joins and transposes what a checkpoint holds. Done to these, that is
only noted, and so is what a rank cuts away. What is left is then read piece by piece from the
files into its place: no more of them is ever there than the result and one piece.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch.utils._pytree import tree_map_only

from sharegen.engine.model.starting.moving import goes_in_pieces, pieces_to

_aten = torch.ops.aten


class _Source(Protocol):
    """Where the numbers of a tensor come from."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        """Read what begins at `start`, [one place a dimension], and is as large as `out`.

        out may be of another dtype, on another device and have any strides.
        """
        ...


class Unread(torch.Tensor):
    """A tensor on the CPU that is read when its numbers are needed, and not kept then.

    An operation that does more than to move numbers reads its operands whole.
    """

    source: _Source

    @staticmethod
    def __new__(cls, source: _Source) -> Unread:
        make: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        made = make(cls, source.shape, dtype=source.dtype, device="cpu")
        made.source = source
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        note = _NOTED.get(func)
        noted = note(*args, **kwargs) if note is not None else None
        if noted is not None:
            return noted
        assert not func._schema.is_mutable, f"{func} would write what is not there"
        args, kwargs = tree_map_only(Unread, Unread.read, (args, kwargs))
        return func(*args, **kwargs)

    def read(self, device: torch.device | None = None) -> torch.Tensor:
        """Read the numbers, in memory of their own on the device, by default the CPU."""
        out = torch.empty(self.shape, dtype=self.dtype, device=device)
        self.source.fill(out, [0] * self.dim())
        return out

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"Unread({self.source})"


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file that is open only while it is read.

    first: the byte at which it begins. It is known, for a file's head names all of its tensors and
    takes milliseconds to read: experts are tens of thousands of them.
    """

    file: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    first: int

    @classmethod
    def all_of(cls, path: str) -> dict[str, Stored]:
        """The tensors of a file by name."""
        found = {}
        with safe_open(path, framework="pt") as file, open(path, "rb") as stream:
            [length] = struct.unpack("<Q", stream.read(8))
            head = json.loads(stream.read(length))
            for name in file.keys():  # noqa: SIM118
                held = file.get_slice(name)
                shape = torch.Size(held.get_shape())
                nothing = held[(slice(0),) * len(shape) or ...]
                first = 8 + length + head[name]["data_offsets"][0]
                found[name] = cls(path, name, shape, nothing.dtype, first)
        return found

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        """Read the numbers that lie together around those that are wanted, and copy these.

        On their way to a GPU only those that are wanted are read, by all cores.
        """
        if not out.numel():
            return
        if goes_in_pieces(out, out.device) and self.first % self.dtype.itemsize == 0:
            wanted = self._mapped()
            for d in range(out.dim()):
                wanted = wanted.narrow(d, start[d], out.shape[d])
            pieces_to(out.device).fill(out, wanted)
            return
        dim = next((d for d, size in enumerate(out.shape) if size > 1), max(0, out.dim() - 1))
        apart = [math.prod(self.shape[d + 1 :]) for d in range(out.dim())]
        before = sum(i * step for i, step in zip(start[: dim + 1], apart, strict=False))
        around = (*out.shape[: dim + 1], *self.shape[dim + 1 :])
        numbers = torch.empty(around, dtype=self.dtype)
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(self.first + before * self.dtype.itemsize)
            view: Any = numbers.view(-1).view(torch.uint8).numpy()
            while len(view):
                count = stream.readinto(view)
                if not count:
                    raise OSError(f"{self.file} ends before {self.name} does")
                view = view[count:]
        for d in range(dim + 1, out.dim()):
            numbers = numbers.narrow(d, start[d], out.shape[d])
        out.copy_(numbers)

    def _mapped(self) -> torch.Tensor:
        """The tensor in the file, of which what is used is read then."""
        end = self.first + math.prod(self.shape) * self.dtype.itemsize
        held = torch.from_file(self.file, shared=False, size=end, dtype=torch.uint8)
        return held[self.first :].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class _Converted:
    whole: _Source
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.whole.shape

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        rounded = out if out.dtype == self.dtype else torch.empty_like(out, dtype=self.dtype)
        self.whole.fill(rounded, start)
        if rounded is not out:
            out.copy_(rounded)


@dataclass(frozen=True)
class _Sliced:
    whole: _Source
    dim: int
    first: int
    count: int

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    @property
    def shape(self) -> torch.Size:
        return _with(self.whole.shape, self.dim, self.count)

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        self.whole.fill(out, _with(start, self.dim, start[self.dim] + self.first))


@dataclass(frozen=True)
class _Transposed:
    whole: _Source
    dims: tuple[int, int]

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._swapped(self.whole.shape))

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        self.whole.fill(out.transpose(*self.dims), self._swapped(start))

    def _swapped(self, each: Sequence[int]) -> list[int]:
        one, other = self.dims
        swapped = list(each)
        swapped[one], swapped[other] = each[other], each[one]
        return swapped


@dataclass(frozen=True)
class _Stacked:
    """Several tensors of one shape that are stacked, along a dimension of their own."""

    parts: tuple[_Source, ...]
    dim: int

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> torch.Size:
        shape = list(self.parts[0].shape)
        shape.insert(self.dim, len(self.parts))
        return torch.Size(shape)

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        inner = [*start[: self.dim], *start[self.dim + 1 :]]
        for i, piece in enumerate(out.unbind(self.dim)):
            self.parts[start[self.dim] + i].fill(piece, inner)


@dataclass(frozen=True)
class _Joined:
    """Several tensors that are joined, one after the other, along one of their dimensions."""

    parts: tuple[_Source, ...]
    dim: int

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def shape(self) -> torch.Size:
        length = sum(part.shape[self.dim] for part in self.parts)
        return _with(self.parts[0].shape, self.dim, length)

    def fill(self, out: torch.Tensor, start: Sequence[int]) -> None:
        begin, end = start[self.dim], start[self.dim] + out.shape[self.dim]
        first = 0
        for part in self.parts:
            length = part.shape[self.dim]
            low, high = max(begin, first), min(end, first + length)
            if low < high:
                piece = out.narrow(self.dim, low - begin, high - low)
                part.fill(piece, _with(start, self.dim, low - first))
            first += length


def leaves(tensor: Unread) -> list[Any]:
    """The sources that a tensor is put together of, such as those of single experts."""
    found: list[Any] = []
    stack: list[Any] = [tensor.source]
    while stack:
        source = stack.pop()
        if isinstance(source, (_Stacked, _Joined)):
            stack.extend(source.parts)
        elif isinstance(source, (_Converted, _Sliced, _Transposed)):
            stack.append(source.whole)
        else:
            found.append(source)
    return found


def whole_leaf(tensor: Unread) -> Any:
    """The source that a tensor is all of, in its order; None where it is put together or moved."""
    source: Any = tensor.source
    turned: list[list[int]] = []
    while isinstance(source, (_Converted, _Transposed)):
        if isinstance(source, _Transposed):
            dims = sorted(source.dims)
            if turned and turned[-1] == dims:
                turned.pop()
            else:
                turned.append(dims)
        source = source.whole
    is_whole = not turned and not isinstance(source, (_Stacked, _Joined, _Sliced))
    return source if is_whole else None


def with_leaves(source: Any, change: Callable[[Any], Any]) -> Any:
    """The same put together of other sources in the places of its own; no conversion is kept."""
    if isinstance(source, (_Stacked, _Joined)):
        return replace(source, parts=tuple(with_leaves(part, change) for part in source.parts))
    if isinstance(source, _Converted):
        return with_leaves(source.whole, change)
    if isinstance(source, (_Sliced, _Transposed)):
        return replace(source, whole=with_leaves(source.whole, change))
    return change(source)


def of_blocks(source: Any, size: int, of_leaf: Callable[[Any], Any]) -> Any:
    """The same put together of tensors that have one number for size x size of each leaf's.

    of_leaf: gives the one of a leaf. Returns None where a block was cut, or is no longer whole.
    """
    if not isinstance(source, (_Stacked, _Joined, _Converted, _Sliced, _Transposed)):
        return of_leaf(source)
    inner = len(source.shape) - 2  # from here on a leaf's own dimensions
    if isinstance(source, (_Stacked, _Joined)):
        parts = tuple(of_blocks(part, size, of_leaf) for part in source.parts)
        is_whole = source.dim < inner or (
            isinstance(source, _Joined)
            and all(part.shape[source.dim] % size == 0 for part in source.parts[:-1])
        )
        return replace(source, parts=parts) if is_whole and None not in parts else None
    whole = of_blocks(source.whole, size, of_leaf)
    if whole is None or isinstance(source, _Converted):
        return whole
    if isinstance(source, _Transposed):
        is_whole = (source.dims[0] < inner) == (source.dims[1] < inner)
        return replace(source, whole=whole) if is_whole else None
    if source.dim < inner:
        return replace(source, whole=whole)
    first, end = source.first, source.first + source.count
    if first % size or (end % size and end < source.whole.shape[source.dim]):
        return None
    return _Sliced(whole, source.dim, first // size, -(-end // size) - first // size)


def _with(each: Sequence[int], dim: int, number: int) -> torch.Size:
    return torch.Size([*each[:dim], number, *each[dim + 1 :]])


# -- what is noted rather than done; None where it must be done -------------------------------


def _same(x: Unread, **kwargs: Any) -> Unread:
    return Unread(x.source)


def _convert(x: Unread, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Unread | None:
    if device is not None and torch.device(device).type != "cpu":
        return None
    return Unread(_Converted(x.source, dtype or x.dtype))


def _slice(
    x: Unread, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Unread | None:
    if step != 1:
        return None
    first, end, _ = slice(start, end).indices(x.shape[dim])
    return Unread(_Sliced(x.source, dim % x.dim(), first, max(0, end - first)))


def _split(x: Unread, lengths: Sequence[int], dim: int = 0) -> list[Unread]:
    ends = accumulate(lengths)
    return [
        Unread(_Sliced(x.source, dim % x.dim(), end - length, length))
        for length, end in zip(lengths, ends, strict=True)
    ]


def _split_alike(x: Unread, length: int, dim: int = 0) -> list[Unread]:
    total = x.shape[dim]
    return _split(x, [min(length, total - i) for i in range(0, total, length)], dim)


def _transpose(x: Unread, dim0: int, dim1: int) -> Unread:
    return Unread(_Transposed(x.source, (dim0 % x.dim(), dim1 % x.dim())))


def _stack(parts: Sequence[torch.Tensor], dim: int = 0) -> Unread | None:
    sources = _sources(parts)
    if sources is None or len({source.shape for source in sources}) > 1:
        return None
    return Unread(_Stacked(sources, dim % (parts[0].dim() + 1)))


def _join(parts: Sequence[torch.Tensor], dim: int = 0) -> Unread | None:
    sources = _sources(parts)
    dim = dim % parts[0].dim()
    if sources is None or len({_with(source.shape, dim, 0) for source in sources}) > 1:
        return None
    return Unread(_Joined(sources, dim))


def _sources(parts: Sequence[torch.Tensor]) -> tuple[_Source, ...] | None:
    """Return the sources of tensors of one dtype, none of which is read."""
    found = tuple(part.source for part in parts if isinstance(part, Unread))
    return found if len(found) == len(parts) and len({part.dtype for part in parts}) == 1 else None


_NOTED: dict[Any, Callable[..., Unread | list[Unread] | None]] = {
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.clone.default: _same,
    _aten._to_copy.default: _convert,
    _aten.slice.Tensor: _slice,
    _aten.split_with_sizes.default: _split,
    _aten.split.Tensor: _split_alike,
    _aten.transpose.int: _transpose,
    _aten.stack.default: _stack,
    _aten.cat.default: _join,
}
