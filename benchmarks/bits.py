"""`python -m benchmarks bits`: which operations give a row other bits where there are more rows.

Two forwards of one model, of few rows and of many, whose first rows are the same tokens. What each
operation gives the rows that both have is compared as bits, and the second forward goes on with the
bits of the first: so every operation is found in which bits begin to differ, not only the first
one. Attention is a stand-in in which a token sees itself alone; samples of whole jobs are compared
by `python -m benchmarks.same_bits`. Sampling from the logits follows.

Of a model that runs uncompiled, operations are those of torch; of one that is compiled, its layers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sharegen.bench.shapes import load_random
from sharegen.engine.core.request import SamplingParams
from sharegen.engine.execute.padding import all_sizes, graph_rows, steady_rows
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.model.compile.stacking import decoder_layers
from sharegen.engine.model.interface import ValuesOnly, active
from sharegen.engine.model.loaded import LoadedModel, on
from sharegen.engine.model.states.mixers import FreshStates
from sharegen.engine.model.steady.holding import hold_products
from sharegen.engine.sample.sampler import SamplingState, sample, top_logprobs
from sharegen.errors import UsageError

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SAMPLED: dict[str, SamplingParams] = {
    "plain": SamplingParams(temperature=0.7),
    "filtered": SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01),
    "penalised": SamplingParams(repetition_penalty=1.1, presence_penalty=0.1, logit_bias={5: 1.0}),
}
_TOP = 5


class Difference(NamedTuple):
    """An operation of which some rows have other bits in the second run.

    rows: how many; first, second: hashes of the bits of all rows that both runs have.
    """

    operation: str
    rows: int
    first: str
    second: str


class Comparison:
    """What two runs give, operation by operation; the second one is given the first one's bits.

    few, many: rows of the first run and of the second. `see` takes note of results; `again` says
    that the second run begins. compared: how many results both runs had rows of.
    """

    def __init__(self, few: int, many: int) -> None:
        self.few, self.many = few, many
        self.differences: list[Difference] = []
        self.compared = 0
        self._kept: list[tuple[str, list[torch.Tensor]]] = []
        self._next: Iterator[tuple[str, list[torch.Tensor]]] | None = None

    def again(self) -> None:
        self._next = iter(self._kept)

    def see(self, operation: str, result: Any) -> None:
        """Raises UsageError where the second run does something else than the first."""
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if self._next is None:
            self._kept.append((operation, [tensor.detach().clone() for tensor in tensors]))
            return
        before, kept = next(self._next, ("nothing", []))
        if before != operation:
            raise UsageError(
                f"the forwards part: {before} of {self.few} rows, {operation} of {self.many}"
            )
        for one, other in zip(kept, tensors, strict=True):
            self._compare(operation, one, other)

    def _compare(self, operation: str, one: torch.Tensor, other: torch.Tensor) -> None:
        sizes = list(zip(one.shape, other.shape, strict=False))
        if one.dim() != other.dim() or sizes.count((self.few, self.many)) != 1:
            return
        axis = sizes.index((self.few, self.many))
        if any(a != b for i, (a, b) in enumerate(sizes) if i != axis) or 0 in other.stride():
            return
        mine = other.narrow(axis, 0, self.few)
        self.compared += 1
        differ = (_bits(one) != _bits(mine)).movedim(axis, 0).reshape(self.few, -1).any(1)
        if differ.any():
            rows = int(differ.sum())
            self.differences.append(Difference(operation, rows, _hash(one), _hash(mine)))
            mine.copy_(one)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _hash(tensor: torch.Tensor) -> str:
    return sha256(_bits(tensor).cpu().numpy().tobytes()).hexdigest()[:12]


class _Operations(TorchDispatchMode):
    """Shows each of torch's operations to a comparison, by its name and that of its module."""

    def __init__(self, comparison: Comparison, names: dict[nn.Module, str]) -> None:
        super().__init__()
        self._comparison, self._names = comparison, names
        self._inside: list[str] = [""]
        self._hooks = ExitStack()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._comparison.see(f"{func} in {self._inside[-1] or 'the model'}", result)
        return result

    def __enter__(self) -> Any:
        for hook in (register_module_forward_pre_hook(self._enter), _always(self._leave)):
            self._hooks.callback(hook.remove)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._inside.append(self._names.get(module, type(module).__name__))

    def _leave(self, module: nn.Module, args: Any, result: Any) -> None:
        self._inside.pop()


def _always(hook: Callable[..., None]) -> Any:
    return register_module_forward_hook(hook, always_call=True)


@contextmanager
def _layers(model: LoadedModel, comparison: Comparison) -> Iterator[None]:
    """Show what each compiled layer returns to a comparison."""
    with ExitStack() as undo:
        for index, layer in enumerate(decoder_layers(model)):
            run = layer._compiled_call_impl
            if run is None:
                continue

            def seen(*args: Any, run: Any = run, name: str = f"layer {index}", **kw: Any) -> Any:
                result = run(*args, **kw)
                comparison.see(name, result)
                return result

            layer._compiled_call_impl = seen
            undo.callback(setattr, layer, "_compiled_call_impl", run)
        yield


def compare_forwards(model: LoadedModel, few: int, many: int, compiled: bool) -> Comparison:
    """Compare forwards of so many rows, each a sequence of one token, and sampling after them."""
    comparison = Comparison(few, many)
    names = {module: name for name, module in model.model.named_modules()}
    logits = []
    for count in (few, many):
        if count == many:
            comparison.again()
        index = torch.arange(count, device=model.device)
        watched = _layers(model, comparison) if compiled else _Operations(comparison, names)
        states = FreshStates(model.mixers, 1)
        with torch.inference_mode(), active(ValuesOnly(), states), watched:
            token, position = index % model.vocab_size, index % model.context_length
            logits.append(model.forward(token, position, index, every=True))
        comparison.see("logits", logits[-1])
    for name, params in _SAMPLED.items():
        sampled = Comparison(few, many)
        _sample(model, logits[0], name, params, sampled)
        sampled.again()
        _sample(model, logits[1], name, params, sampled)
        comparison.compared += sampled.compared
        comparison.differences += sampled.differences
    return comparison


def _sample(
    model: LoadedModel, logits: torch.Tensor, name: str, params: SamplingParams, seen: Comparison
) -> None:
    count = len(logits)
    state = SamplingState(count, model.vocab_size, model.device, eos_token_ids=model.eos_token_ids)
    state.set_rows(range(count), [params] * count, range(count), [[0]] * count)
    with torch.inference_mode():
        history = torch.arange(count, device=model.device, dtype=torch.int32)[:, None]
        zeros = torch.zeros(count, dtype=torch.int64, device=model.device)
        drawn = sample(logits, state, zeros, history=history % model.vocab_size)
        found = {"tokens, logprobs": drawn, "top logprobs": top_logprobs(logits, *drawn, _TOP)}
    for what, tensors in found.items():
        seen.see(f"{what}, {name}", tensors)


def bench_bits(
    shape: str, *, rows: Sequence[int], deterministic: bool, compile_model: bool,
    device: str, dtype: str, quantization: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Compare two forwards; prints the operations that differ to stderr.

    rows: of the two forwards. deterministic: whether linear layers are held to one order of sums.
    """
    if len(rows) != 2 or rows[0] >= rows[1]:
        raise UsageError(f"--rows {', '.join(map(str, rows))}: give two numbers, the lower first")
    place = resolve_device(device)
    few, many = rows
    with on(place):
        model = load_random(shape, getattr(torch, dtype), quantization, device=place)
        held = all_sizes(steady_rows, many) if deterministic else ()
        if compile_model:
            from sharegen.engine.model.compile.compiling import optimise

            optimise(model, held)
        elif held:
            hold_products(model, held)
        padded = steady_rows if deterministic else graph_rows
        found = compare_forwards(model, padded(few), padded(many), compile_model)
        model.release()
    kinds = Counter(_kind(difference.operation) for difference in found.differences)
    for difference in found.differences:
        if kinds[_kind(difference.operation)] == 1 or "0" in difference.operation:
            print(*difference, sep="\t", file=sys.stderr)
    return {
        "bench": "bits", "shape": shape, "rows": [padded(few), padded(many)],
        "deterministic": deterministic, "compiled": compile_model, "compared": found.compared,
        "differing": dict(kinds),
        "first": found.differences[0]._asdict() if found.differences else None,
    }  # fmt: skip


def _kind(operation: str) -> str:
    """The operation's name without the layer's number."""
    return ".".join("*" if part.isdigit() else part for part in operation.split("."))
