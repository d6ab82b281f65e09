"""`sharegen lm-eval`: lm-evaluation-harness with sharegen as its model."""

from __future__ import annotations

import typer

from sharegen.common.extras import install
from sharegen.errors import UsageError


def lm_eval(context: typer.Context) -> None:
    """Evaluate a model with lm-evaluation-harness.

    All options are its own: `sharegen lm-eval run --help` shows them.

    \b
    Examples:
      sharegen lm-eval --model_args pretrained=./model --tasks gsm8k
      sharegen lm-eval --model_args pretrained=./model,dtype=float32 \\
        --tasks hellaswag --limit 100
    """
    try:
        from sharegen import lm_eval as client
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "lm_eval":
            raise
        raise UsageError(
            f"lm-eval is not installed: {install('lm-eval')}, then run this again"
        ) from None
    client.main(context.args)
