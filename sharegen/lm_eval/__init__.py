"""sharegen as a model of lm-evaluation-harness; importing this registers it there.

    import sharegen.lm_eval
    lm_eval.simple_evaluate(model="sharegen", model_args="pretrained=./model", tasks=["gsm8k"])

All requests of a kind are one job, so that what contexts share (few-shot examples, the question of
several choices) is computed once. Every result is a line of a journal, which a later run with the
same model goes on from. Tokens, cuts and scores are those of the harness's own `hf` model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sharegen.lm_eval.model import SharegenLM

__all__ = ["SharegenLM", "main"]


def main(arguments: Sequence[str]) -> None:
    """Run lm-eval's own command line, with this model unless --model names another."""
    from lm_eval.__main__ import cli_evaluate

    given = list(arguments)
    command = given.pop(0) if given and given[0] in ("run", "ls", "validate") else "run"
    named = any(word in ("--model", "-M") or word.startswith("--model=") for word in given)
    if command == "run" and not named and not {"-h", "--help"} & set(given):
        given = ["--model", "sharegen", *given]
    sys.argv = ["lm-eval", command, *given]
    cli_evaluate()
