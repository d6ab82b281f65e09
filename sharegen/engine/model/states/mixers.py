"""Layers that keep a state: convolutions and recurrences, which read a sequence token by token.

Their code is Hugging Face's own, which asks a cache for the state that a sequence has reached and
tells it the next one. Everything outside of such a *mixer* sees one packed row of tokens; a mixer
must see sequences. So its forward is replaced by one that hands the packed tokens to whoever runs
the model (`interface.py`), who calls the mixer's own on sequences, with a cache of ours.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import isfunction
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from sharegen.engine.model import interface
from sharegen.engine.model.states.in_place import RECURRENT, InputsInPlace, Key, StateInPlace
from sharegen.engine.model.states.scan import scanning_from, starts_from_nothing
from sharegen.engine.model.states.time_steps import has_limits, within_limits

CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""How transformers' modules call the cache that they are given."""

HANDS_STATES_OVER = hasattr(Cache, "get_recurrent_state")
"""Whether this transformers lets a mixer go on from any state: 5.23 does, 5.17 does not."""

TORCH_CODE = "transformers' own torch code"
_STEPS = {"fused_recurrent_gated_delta_rule", "fused_recurrent_kda"}
_ONE_DECAY = "fused_recurrent_gated_delta_rule"  # for all numbers of a key
_CONVOLUTION, _CHUNK_CONVOLUTION = "causal_conv1d_update", "causal_conv1d_fn"


@dataclass(frozen=True)
class StateSpec:
    """One state of a mixer, as a sequence has it."""

    key: Key
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class States:
    """The states of some sequences in one mixer: what its forward takes for a cache.

    tensors: [sequences, *shape] each. They are the mixer's to change: of a single token it changes
    what it was given and says nothing, of more it tells what comes next.
    """

    def __init__(
        self,
        tensors: dict[Key, torch.Tensor],
        in_place: Mapping[Key, StateInPlace] | None = None,
    ) -> None:
        """Take the tensors, and as `in_place` the states that are not among them."""
        self.tensors = tensors
        self._in_place = in_place or {}

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | StateInPlace:
        return self._state(("conv", state_idx))

    def get_recurrent_state(
        self, layer_idx: int, state_idx: int = 0
    ) -> torch.Tensor | StateInPlace:
        return self._state(("recurrent", state_idx))

    def _state(self, key: Key) -> torch.Tensor | StateInPlace:
        return self._in_place[key] if key in self._in_place else self.tensors[key]

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **how: Any
    ) -> torch.Tensor | StateInPlace:
        """New columns [sequences, channels, tokens]; returns them behind those of the state."""
        if ("conv", state_idx) in self._in_place:
            return InputsInPlace(("conv", state_idx), conv_states)
        before = self.tensors["conv", state_idx]
        whole = torch.cat([before, conv_states], dim=-1)
        self.tensors["conv", state_idx] = whole[..., -before.shape[-1] :]
        return whole

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **how: Any
    ) -> torch.Tensor:
        if ("recurrent", state_idx) not in self._in_place:
            self.tensors["recurrent", state_idx] = recurrent_states
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


@dataclass(eq=False)
class Mixer:
    """A module that keeps states, and what they are.

    cache_argument: of its forward. results: of one that returns several tensors, as an attention's
    projections do, what each has of a token. forward: its own. compiled: the same for a step that
    changes all its states in place, where it is compiled for that.
    """

    module: nn.Module
    states: tuple[StateSpec, ...]
    cache_argument: str
    results: tuple[tuple[int, ...], ...] = ()
    forward: Callable[..., Any] = field(init=False)
    compiled: Callable[..., Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.forward = self.module.forward

    def run(self, hidden: torch.Tensor, states: States, decoding: bool = False) -> torch.Tensor:
        """Run the mixer: hidden [sequences, tokens, size] gives [sequences, tokens, width].

        The states go on by so many tokens. Several results lie one behind the other in `width`.
        decoding: whether the tokens, one of each sequence, are none of its prompt.
        """
        return self._joined(self._run(hidden, states, decoding))

    @property
    def keys(self) -> frozenset[Key]:
        """The keys of its states."""
        return frozenset(spec.key for spec in self.states)

    def spec(self, key: Key) -> StateSpec:
        """The specification of the state with that key."""
        return next(spec for spec in self.states if spec.key == key)

    def step(self, hidden: torch.Tensor, states: States, compiled: bool) -> torch.Tensor:
        """Run the mixer as `run` does, for one token in decoding; compiled: by what `compiled`
        is.
        """
        if not compiled:
            return self.run(hidden, states, decoding=True)
        assert self.compiled is not None
        return self._joined(self.compiled(hidden, **{self.cache_argument: states}))

    def width(self, size: int) -> int:
        """How many numbers of a token `run` returns, where it is given `size`."""
        return sum(map(math.prod, self.results)) or size

    def begins_with_zeros(self, hidden: torch.Tensor) -> bool:
        """Whether a state of zeros is what the mixer takes for none; hidden: as `run` takes it."""
        from_nothing = self._joined(self.forward(hidden, **{self.cache_argument: None}))
        return torch.equal(from_nothing, self.run(hidden, self.fresh(len(hidden), hidden.device)))

    def _run(self, hidden: torch.Tensor, states: States, decoding: bool) -> Any:
        with ExitStack() as prepared:
            if hidden.shape[1] > 1 and starts_from_nothing(self.module):
                prepared.enter_context(scanning_from(self.module, states.tensors[RECURRENT]))
            elif hidden.shape[1] == 1 and not decoding and has_limits(self.module):
                prepared.enter_context(within_limits(self.module))
            return self.forward(hidden, **{self.cache_argument: states})

    def _joined(self, results: Any) -> torch.Tensor:
        if not self.results:
            mixed: torch.Tensor = results
            return mixed
        return torch.cat([result.flatten(2) for result in results], dim=-1)

    def fresh(self, sequences: int, device: torch.device) -> States:
        """Where sequences begin: a state of zeros is what a mixer takes for none."""
        return States({
            spec.key: torch.zeros((sequences, *spec.shape), dtype=spec.dtype, device=device)
            for spec in self.states
        })  # fmt: skip


def install(mixers: Sequence[Mixer], undo: ExitStack) -> None:
    """Let the mixers' modules hand their tokens over, until it is undone."""
    for mixer in mixers:
        mixer.module.forward = _handing_over(mixer.results)
        undo.callback(delattr, mixer.module, "forward")


@contextmanager
def as_they_were(mixers: Sequence[Mixer]) -> Iterator[None]:
    """Open a block in which the mixers' modules run by themselves."""
    for mixer in mixers:
        del mixer.module.forward
    try:
        yield
    finally:
        for mixer in mixers:
            mixer.module.forward = _handing_over(mixer.results)


def _hand_over(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Stand in for the forward of a mixer: hidden_states [1, T, size] of all tokens give as
    many.
    """
    if torch.compiler.is_compiling():
        return interface.mix_in_order(hidden_states[0])[None]
    return interface.mix(hidden_states[0])[None]


@cache  # one function for all layers alike, or each would be compiled anew
def _handing_over(results: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
    """What stands in for a mixer's forward; results: see `Mixer`."""
    if not results:
        return _hand_over
    sizes = [math.prod(shape) for shape in results]

    def hand_over(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Stand in for the forward of a mixer that hands over several tensors.

        Args:
            hidden_states: [1, T, size] of all tokens of a batch.

        Returns:
            [1, T, *shape] for each of them.
        """
        if torch.compiler.is_compiling():
            mixed = interface.mix_in_order(hidden_states[0], sum(sizes))
        else:
            mixed = interface.mix(hidden_states[0])
        parts = zip(mixed.split(sizes, dim=-1), results, strict=True)
        return tuple(part.unflatten(-1, shape)[None] for part, shape in parts)

    return hand_over


def kernels_of(mixers: Sequence[Mixer], device: torch.device) -> str | None:
    """What computes the mixers: packages of kernels on a GPU, or torch; None without mixers."""
    if not mixers:
        return None
    choices = (choice for mixer in mixers for _, choice in _choices(_code_of(mixer.module)))
    found = {choice.package for choice in choices if choice.package is not None}
    found = found if device.type == "cuda" else set()  # see `choose_by_device`
    return f"kernels of {', '.join(sorted(found))}" if found else TORCH_CODE


@dataclass(frozen=True)
class _Choice:
    """A function for which transformers may take a package's kernels in place of its own code.

    package: of the kernels; None where it has not taken them.
    """

    package: str | None
    name: str
    kernels: Callable[..., Any]
    torch_function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Choose by where the tensors are, and by where the state is.

        Such kernels are for GPUs. Tensors of the meta device have no memory, and a kernel that is
        given their addresses fails on whatever GPU is there, for good.
        """
        given = (*args, *kwargs.values())
        for state in given:
            if isinstance(state, StateInPlace):
                return state.step(*args, **kwargs)
        on_gpu = next(x for x in given if isinstance(x, torch.Tensor)).is_cuda
        return (self.kernels if on_gpu else self.torch_function)(*args, **kwargs)


def choose_by_device(model: PreTrainedModel) -> None:
    """From here on the model's code takes kernels on GPUs alone, and torch elsewhere.

    transformers takes them wherever their package is installed, and they fail on a CPU.
    """
    for code in {id(code): code for code in map(_code_of, model.modules())}.values():
        for name, choice in list(_choices(code)):
            code[name] = choice


def keys_in_place(mixer: Mixer) -> frozenset[Key]:
    """Which of the mixer's states a step of one token may take as `StateInPlace`.

    They are those of its convolutions, and of the gated delta rule where that is computed by a
    package's kernel, whose place ours takes.
    """
    names = {choice.name for _, choice in _choices(_code_of(mixer.module))}
    conv = {key for key in mixer.keys if key[0] == "conv"} if _CONVOLUTION in names else set()
    return frozenset(conv | (mixer.keys & {RECURRENT} if names & _STEPS else set()))


def keys_in_chunks(mixer: Mixer) -> frozenset[Key]:
    """Which of the mixer's states some tokens of a prompt may take as `StateInPlace`."""
    choices = (choice for _, choice in _choices(_code_of(mixer.module)))
    own = {choice.name for choice in choices if choice.package is None}
    convolutions = {key for key in mixer.keys if key[0] == "conv"}
    return frozenset(convolutions if {_CONVOLUTION, _CHUNK_CONVOLUTION} <= own else ())


def has_one_decay(mixer: Mixer) -> bool:
    """Whether a recurrent state in place decays as a whole."""
    return any(choice.name == _ONE_DECAY for _, choice in _choices(_code_of(mixer.module)))


def _code_of(module: nn.Module) -> dict[str, Any]:
    return vars(sys.modules[type(module).__module__])


def _choices(code: dict[str, Any]) -> Iterator[tuple[str, _Choice]]:
    """Yield the choices in a module's code, by the names of its functions."""
    for name, value in code.items():
        if isinstance(value, _Choice):
            yield name, value
        elif isfunction(value):
            around = _closure(value)
            if "package" not in around:
                continue
            own, kernel = around["torch_function"], around["func_name"]
            if around["implementation"] is not own:
                yield name, _Choice(around["package"], kernel, value, own)
            elif kernel in (_CONVOLUTION, _CHUNK_CONVOLUTION):
                yield name, _Choice(None, kernel, value, own)


def _closure(function: FunctionType) -> dict[str, Any]:
    """What a function is wrapped around."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}


class FreshStates:
    """A stand-in for states that are kept: every `length` tokens are a sequence from its start."""

    def __init__(self, mixers: Sequence[Mixer], length: int) -> None:
        self._mixers = mixers
        self._length = length

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        mixer = self._mixers[index]
        sequences = hidden.view(-1, self._length, hidden.shape[-1])
        states = mixer.fresh(len(sequences), hidden.device)
        return mixer.run(sequences, states).flatten(0, 1)


class WholeSequences:
    """Sequences that lie in one batch from their first to their last token, in any order.

    sequence: [T] which sequence a row belongs to; position: [T] its position there.
    """

    def __init__(
        self, mixers: Sequence[Mixer], sequence: torch.Tensor, position: torch.Tensor
    ) -> None:
        self._mixers = mixers
        order = [torch.nonzero(sequence == i)[:, 0] for i in sequence.unique()]
        self._rows = [rows[position[rows].argsort()] for rows in order]

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        mixer = self._mixers[index]
        parts = [mixer.run(hidden[rows][None], mixer.fresh(1, hidden.device))[0]
                 for rows in self._rows]  # fmt: skip
        return torch.cat(parts)[torch.cat(self._rows).argsort()]


class Watching(DynamicCache):
    """transformers' own cache, which notes the module that asks for a state, or tells one.

    results: of the modules that ran and returned several tensors, what each has of a token.
    others: those that returned neither a tensor nor a tuple of tensors of their tokens.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config)
        self._running: list[nn.Module] = []
        self.layer_of: dict[nn.Module, int] = {}
        self.results: dict[nn.Module, tuple[tuple[int, ...], ...]] = {}
        self.others: set[nn.Module] = set()

    @contextmanager
    def over(self, model: PreTrainedModel) -> Iterator[None]:
        """Follow which module runs."""
        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._enter))
            handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        self._running.append(module)

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._running.pop()
        if isinstance(output, torch.Tensor):
            return
        if isinstance(output, tuple) and _are_of_tokens(output):
            self.results[module] = tuple(tuple(tensor.shape[2:]) for tensor in output)
        else:
            self.others.add(module)

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **how: Any
    ) -> torch.Tensor:
        self.layer_of[self._running[-1]] = layer_idx
        return super().update_conv_state(conv_states, layer_idx, state_idx, **how)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **how: Any
    ) -> torch.Tensor:
        self.layer_of[self._running[-1]] = layer_idx
        return super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **how)

    def mixers(self) -> list[Mixer]:
        """The mixers that were seen, in the order of their calls."""
        return [
            Mixer(
                module,
                tuple(self._states(layer)),
                _cache_argument(module),
                self.results.get(module, ()),
            )
            for module, layer in self.layer_of.items()
        ]

    def _states(self, layer_idx: int) -> Iterator[StateSpec]:
        layer: Any = self.layers[layer_idx]
        for kind, tensors in (("conv", layer.conv_states), ("recurrent", layer.recurrent_states)):
            for number, tensor in tensors.items():
                if tensor is not None:
                    yield StateSpec((kind, number), tuple(tensor.shape[1:]), tensor.dtype)


def _are_of_tokens(results: tuple[Any, ...]) -> bool:
    """Whether all are tensors [sequences, tokens, ...] of one dtype, so that they can be joined."""
    if not all(isinstance(result, torch.Tensor) and result.dim() > 2 for result in results):
        return False
    return len({(result.shape[:2], result.dtype) for result in results}) == 1


def _cache_argument(module: nn.Module) -> str:
    known = inspect.signature(module.forward).parameters
    return next(name for name in CACHE_ARGUMENTS if name in known)
