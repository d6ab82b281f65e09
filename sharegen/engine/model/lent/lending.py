"""A module that is somebody else's is sharegen's during sharegen's own forwards alone.

What the engine needs of a module it changes on the module itself: its attention, fused projections,
compiled layers, the mode. Whoever trains that module calls it between two steps, and must find it
as it was. So all that was changed is written down once, as values in the dictionaries of modules
and configs, put in place when a forward of ours begins and taken out when it ends. A CUDA graph
runs no module, and pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import nn
from transformers import PreTrainedModel

_ABSENT: Any = object()
_COMPILED = "_compiled_call_impl"  # of a module that its owner compiled in place
_ORIGINAL = "_original_forward"  # what accelerate keeps where it wraps a forward in autocast

_lent: WeakKeyDictionary[nn.Module, ReferenceType[Lent]] = WeakKeyDictionary()
"""What modules are lent to. One that was dropped without being closed has its module no more."""


def is_lent(module: nn.Module) -> bool:
    """Whether an engine has the module."""
    lent = _lent.get(module)
    return lent is not None and lent() is not None


def configs_of(module: PreTrainedModel) -> list[Any]:
    """Every config whose attention implementation a switch may change, each once."""
    found: dict[int, Any] = {}
    stack: list[Any] = [part.config for part in module.modules() if hasattr(part, "config")]
    while stack:
        config = stack.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in found:
            found[id(config)] = config
            stack.extend(getattr(config, key, None) for key in config.sub_configs)
    return list(found.values())


class Lent:
    """What is ours on a module that belongs to somebody else."""

    def __init__(self, module: PreTrainedModel) -> None:
        self._module = module
        self._modes = [vars(part) for part in module.modules()]
        self._ours: list[tuple[dict[str, Any], str, Any]] = []  # dictionary, key, our value
        self._inside = False
        _lent[module] = ref(self)

    def end(self) -> None:
        """Leave the module to its owner for good."""
        self._ours.clear()
        _lent.pop(self._module, None)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Open a block in which the module is as the engine needs it: in eval mode, too."""
        if self._inside:
            yield
            return
        self._inside = True
        theirs = [(of, key, of.get(key, _ABSENT)) for of, key, _ in self._ours]
        training = [mode for mode in self._modes if mode["training"]]
        try:
            _put(self._ours)
            for mode in training:
                mode["training"] = False
            yield
        finally:
            for mode in training:
                mode["training"] = True
            _put(theirs)
            self._inside = False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Open a block like `ours`; what it changes on module and configs is ours from then on."""
        if self._inside:
            yield
            return
        before = [(of, dict(of)) for of in _dictionaries(self._module)]
        changed: list[tuple[dict[str, Any], str, Any]] = []  # with the owner's values
        self._call_directly()
        try:
            with self.ours(), torch.inference_mode(False):  # what is made of weights may train
                try:
                    yield
                finally:
                    changed += _differences(before)
                    top = vars(self._module)
                    of_top = [(top, key, top.get(key, _ABSENT)) for key in ("forward", _COMPILED)]
                    found = [(of, key, of.get(key, _ABSENT)) for of, key, _ in changed]
                    self._ours = found + of_top
        finally:
            _put(changed)

    def _call_directly(self) -> None:
        """Take off what is put around forwards: a compiler's code, accelerate's autocast."""
        top = vars(self._module)
        if _ORIGINAL in top:
            top["forward"] = top[_ORIGINAL]
        for part in self._module.modules():
            vars(part).pop(_COMPILED, None)


def _dictionaries(module: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """What modules and configs hold, wherever a preparation may change it."""
    for part in module.modules():
        yield from (vars(part), part._parameters, part._buffers, part._modules)
    yield from map(vars, configs_of(module))


def _differences(
    before: Iterable[tuple[dict[str, Any], dict[str, Any]]],
) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield what dictionaries hold otherwise than in a copy, with the value of the copy."""
    for of, was in before:
        for key in {*was, *of} - {"training"}:
            if was.get(key, _ABSENT) is not of.get(key, _ABSENT):
                yield of, key, was.get(key, _ABSENT)


def _put(values: Iterable[tuple[dict[str, Any], str, Any]]) -> None:
    for of, key, value in values:
        if value is _ABSENT:
            of.pop(key, None)
        else:
            of[key] = value
