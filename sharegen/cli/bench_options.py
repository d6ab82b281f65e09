"""Options that several measurements have: each is declared here once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sharegen.common.parameters.machine import MachineParameters
from sharegen.common.parameters.parameter import declared
from sharegen.errors import UsageError

_DTYPES = ("bfloat16", "float16", "float32")


def _known_dtype(name: str) -> str:
    if name not in _DTYPES:
        raise UsageError(f"--dtype {name}: it must be bfloat16, float16 or float32")
    return name


_MACHINE = declared(MachineParameters)


def _declared(name: str) -> Any:
    """The option that a flag of `run` is, for a measurement that has defaults of its own."""
    flag, parameter = _MACHINE[name].parameter.flag, _MACHINE[name].parameter
    assert flag is not None

    def known(value: str | None) -> str | None:
        if not _MACHINE[name].takes(value):
            raise UsageError(f"{flag.name} {value}: it must be {' or '.join(flag.complete)}")
        return value

    return typer.Option(
        flag.names, help=flag.help or parameter.description, metavar=flag.metavar, callback=known
    )


Shape = Annotated[
    str,
    typer.Option(
        help="Shape of the model: llama3-8b, -70b, llama2-7b, -13b, codellama-7b, -13b, -34b, or "
        "a folder's config."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="What the model computes in: bfloat16, float16 or float32.", callback=_known_dtype
    ),
]
Device = Annotated[str, _declared("device")]
Quantization = Annotated[str | None, _declared("quantization")]
KVCacheDtype = Annotated[str, _declared("kv_cache_dtype")]
CompileModel = Annotated[
    bool, typer.Option("--compile/--no-compile", help="Compile the model's layers.")
]
Rows = Annotated[int, typer.Option(min=1, help="Sequences decoded together.")]
