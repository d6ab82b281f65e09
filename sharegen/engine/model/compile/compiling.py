"""What makes a model's own code fast on a GPU: fused projections and torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from types import MethodType
from typing import Any

import torch
import torch._dynamo.config
from torch import nn

from sharegen.engine.model.compile.fusing import fuse_projections, refresh, unfuse
from sharegen.engine.model.compile.stacking import Stack, decoder_layers, stacks
from sharegen.engine.model.compile.wanted_rows import skip_unwanted_rows, wanted_rows
from sharegen.engine.model.last_layer import Wanted
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.passes.adding import SumsOntoResiduals
from sharegen.engine.model.passes.choosing import whole_rows
from sharegen.engine.model.passes.graph_passes import GraphPasses
from sharegen.engine.model.passes.steadying import HeldProducts
from sharegen.engine.model.states.in_place import changing, in_place, no_changes
from sharegen.engine.model.states.mixers import Mixer, States, keys_in_place
from sharegen.engine.model.steady.holding import be_steady, hold_products
from sharegen.engine.model.summary import Optimised
from sharegen.engine.model.tensor_parallel.ranks import alone

_TRIAL_TOKENS = 512  # as in a step: the compiler chooses its tiles for as many
_TRIAL_WANTED = (7, 11)  # rows; no sizes of a model's, or the compiler takes them for these
_TRIAL_ROWS = 32  # where each has a state of its own
_MIXER_OPTIONS: dict[str, Any] = {"combo_kernels": True}  # small kernels side by side in one
_PER_MODULE = 4  # compilations of one kind at most; every layer may be a kind of its own


def optimise(model: LoadedModel, steady_rows: Sequence[int] = ()) -> Optimised:
    """Fuse projections and compile the decoder layers, with a dynamic number of tokens.

    Layers are compiled in stacks of a few where the model hands on what each of them returns. Norms
    outside of layers are compiled, too, and those inside of mixers, whose own code runs uncompiled
    (`mixers.py`): a norm's many kernels become one. Mixers whose states all change in place are
    compiled whole for decoding. Modules of one kind share one compilation. A model that does not
    compile runs as it was, and a warning says why; so does one rank's shard where that of another
    does not, and so do norms and mixers, beside layers that compile. The last layer is compiled
    once more, for the rows whose logits are wanted (`last_layer.py`). All is undone when the model
    is released. Returns what came of it.

    steady_rows: the numbers of rows that forwards will have, where a row's bits are not to depend
    on the others (`steady/`); none where they may.
    """
    done = Optimised()
    layers = decoder_layers(model)
    wanted = wanted_rows(model)
    if not layers:
        done.left.append("layers: none is of transformers' own kind")
        warnings.warn("the model runs uncompiled: no layer of it is of transformers' own kind",
                      stacklevel=2)  # fmt: skip
    is_lent = model.lent is not None
    replaced = fuse_projections(model.model, is_lent)
    if steady_rows:
        be_steady(model, steady_rows)
    found, reason = _compile_layers(model, layers)
    if reason is not None:
        unfuse(replaced, is_lent)
        if steady_rows:
            hold_products(model, steady_rows)
        warnings.warn(f"the model runs uncompiled: {reason:.200}", stacklevel=2)
        skip_unwanted_rows(model)
        done.left.append(f"the whole model: {reason:.200}")
        return done
    model.on_release(unfuse, replaced, is_lent)
    model.on_change(refresh, replaced)
    if steady_rows:
        hold_products(model, steady_rows, compiled=layers)
    if replaced:
        done.fused.append(f"{len(replaced)} projections of the same inputs into fewer")
    if layers:
        done.fused.append(f"{len(layers)} layers{' in stacks' if found else ', one by one'}")
    if wanted is not None:
        reason = _compile_last(model, found[-1] if found else layers[-1], wanted)
        if reason is not None:
            done.left.append(f"the last layer for wanted rows: {reason:.200}")
            warnings.warn(f"the last layer runs for all tokens: {reason:.200}", stacklevel=2)
    inside = {module for layer in layers for module in layer.modules()}
    norms = [norm for norm in _norms(model.model) if norm not in inside]
    norms += [norm for mixer in model.mixers for norm in _norms(mixer.module)]
    reason = _compile(model, norms) if norms else None
    if reason is not None:
        done.left.append(f"norms: {reason:.200}")
        warnings.warn(f"norms run uncompiled: {reason:.200}", stacklevel=2)
    elif norms:
        done.fused.append(f"{len(norms)} norms outside of layers")
    reason = _compile_steps(model)
    if reason is not None:
        done.left.append(f"mixers: {reason:.200}")
        warnings.warn(f"mixers run uncompiled: {reason:.200}", stacklevel=2)
    elif compiled := sum(mixer.compiled is not None for mixer in model.mixers):
        done.fused.append(f"{compiled} mixers for decoding")
    return done


def _compile_layers(
    model: LoadedModel, layers: Sequence[nn.Module]
) -> tuple[list[Stack], str | None]:
    """Compile them in stacks, or one by one, until the model is released; or say why not.

    Returns the stacks, if it is in those.
    """
    try:
        found = stacks(model, layers)
    except Exception as error:  # what the model cannot do it cannot do compiled
        return [], _first_line(error)
    if found and _compile(model, found) is None:
        return found, None
    return [], _compile(model, layers)


def _compile_last(model: LoadedModel, last: nn.Module, wanted: Wanted) -> str | None:
    """Compile the last layer, or the stack that it is in, for wanted rows alone; or say why not."""
    model.wanted = wanted
    if isinstance(last, Stack):
        last.wanted = wanted
        reason = _failure(model)
    else:
        reason = _compile(model, [Stack([last], wanted)])
    if reason is not None:
        model.wanted = None
    return reason


def _compile_steps(model: LoadedModel) -> str | None:
    """Compile mixers for decoding until the model is released, or leave them and say why."""
    mixers = [mixer for mixer in model.mixers if keys_in_place(mixer) == mixer.keys]
    _allow_compilations(_PER_MODULE * len(mixers))
    size: int = model.model.config.get_text_config().hidden_size
    with ExitStack() as undo:
        for mixer in mixers:
            mixer.compiled = _compiled(mixer, _steady_options() if model.steady else {})
            undo.callback(setattr, mixer, "compiled", None)
        try:
            with torch.inference_mode():  # as a job's steps run, which are other tensors
                hidden = torch.zeros(_TRIAL_TOKENS, 1, size, dtype=model.dtype, device=model.device)
                for mixer in mixers:
                    with changing(no_changes(mixer.keys)):
                        mixer.step(hidden, States({}, in_place(mixer.keys)), compiled=True)
        except Exception as error:
            return _first_line(error)
        model.on_release(undo.pop_all().close)
    return None


def _compiled(mixer: Mixer, more: dict[str, Any]) -> Callable[..., Any]:
    options = _MIXER_OPTIONS | more
    run = torch.compile(mixer.forward, dynamic=True, fullgraph=True, options=options)
    norms = list(_norms(mixer.module))

    def step(*args: Any, **kwargs: Any) -> Any:
        for norm in norms:
            norm.forward = MethodType(_kept, norm)
        try:
            return run(*args, **kwargs)
        finally:
            for norm in norms:
                del norm.forward

    return step


def _kept(norm: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
    result: torch.Tensor = type(norm).forward(norm, *args, **kwargs)
    _keep(result)
    return result


@torch.library.custom_op("sharegen::keep", mutates_args={"tensor"})
def _keep(tensor: torch.Tensor) -> None:
    """Does nothing to it, but the compiler takes it for a change, and has it written as it is here.

    A norm of heads is one kernel so. For a product of what all heads have the compiler would write
    it in that shape, in two kernels, of which the second computes half of the first again.
    """


@_keep.register_fake
def _(tensor: torch.Tensor) -> None:
    return None


def _norms(whole: nn.Module) -> Iterator[nn.Module]:
    """The modules in a mixer, or model, that have a norm's shape: no parts, vectors for weights.

    Those of packages are kernels already, as are torch's: the model's own code is not.
    """
    for module in whole.modules():
        weights = list(module.parameters())
        is_leaf = next(module.children(), None) is None
        is_of_model = type(module).__module__ == type(whole).__module__
        if weights and is_leaf and is_of_model and all(weight.dim() == 1 for weight in weights):
            yield module


def _compile(model: LoadedModel, modules: Sequence[nn.Module]) -> str | None:
    """Compile them until the model is released, or leave them as they are and say why."""
    _allow_compilations(_PER_MODULE * len(modules))
    # What every rank computes for itself, as which experts a token goes to, must be alike to the
    # bit: no rank may time tiles of a reduction and choose others than the next.
    options: dict[str, Any] = {"pre_grad_custom_pass": GraphPasses()}
    reductions = whole_rows()
    if model.steady:
        options |= _steady_options()
    if model.ranks is not None:
        options = {"deterministic": True, "post_grad_custom_post_pass": SumsOntoResiduals()}
        if model.steady:
            options["pre_grad_custom_pass"] = HeldProducts()
        reductions = nullcontext()
    for module in modules:
        module.compile(dynamic=True, fullgraph=True, options=options)
    with reductions:
        reason = _failure(model)
    if model.ranks is not None and not model.ranks.least(reason is None):
        reason = reason or "that of another rank does not compile"
    if reason is None:
        model.on_release(_undo, modules)
    else:
        _undo(modules)
    return reason


def _steady_options() -> dict[str, Any]:
    """For one kernel of a reduction, which another process does not time and choose otherwise."""
    return {"deterministic": True, "pre_grad_custom_pass": GraphPasses(steady=True)}


def _failure(model: LoadedModel) -> str | None:
    """Why the compiler cannot do it, if so."""
    trials = list(zip((_TRIAL_TOKENS, 2 * _TRIAL_TOKENS), _TRIAL_WANTED, strict=True))
    if model.mixers:  # which, and what is in them, see other shapes in decoding than in prefill
        trials += [(_TRIAL_ROWS, _TRIAL_ROWS), (2 * _TRIAL_ROWS, 2 * _TRIAL_ROWS)]
    try:
        with alone():
            for count, rows in trials:
                model.trial_forward(count, rows=rows)
    except Exception as error:  # whatever the compiler could not do, the model still runs without
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _allow_compilations(count: int) -> None:
    """Let so many more variants of the modules' code be compiled.

    Beyond its limit (8) Dynamo raises FailOnRecompileLimitHit, in the midst of a job. The limits
    are the process's, which may have compiled other models, and are only ever raised.
    """
    config = torch._dynamo.config
    config.recompile_limit += count
    config.accumulated_recompile_limit += 16 * count


def _undo(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        module._compiled_call_impl = None
        if isinstance(module, Stack):
            module.leave()
