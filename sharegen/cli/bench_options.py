"""Options that several measurements have: each is declared here once."""

from __future__ import annotations

from typing import Annotated

import typer

from sharegen.errors import UsageError

_DTYPES = ("bfloat16", "float16", "float32")


def _known_dtype(name: str) -> str:
    if name not in _DTYPES:
        raise UsageError(f"--dtype {name}: it must be bfloat16, float16 or float32")
    return name


Shape = Annotated[
    str,
    typer.Option(
        help="llama3-8b, -70b, llama2-7b, -13b, codellama-7b, -13b, -34b, or a folder's config."
    ),
]
Dtype = Annotated[str, typer.Option(help="bfloat16, float16 or float32.", callback=_known_dtype)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1.")]
CompileModel = Annotated[bool, typer.Option("--compile/--no-compile")]
Rows = Annotated[int, typer.Option(min=1, help="Sequences decoded together.")]
