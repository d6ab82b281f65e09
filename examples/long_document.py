"""Many questions about one long document, which is computed and stored once for all of them.

    python examples/long_document.py examples/README.md "What is it?" "Who is it for?"

Without --model the small bundled one shows how it goes: it has room for 2,048 tokens, and what
it says is of no use.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files
from pathlib import Path

from sharegen import LLM, SamplingParams
from sharegen.errors import SharegenError

TINYMATH = files("sharegen.recipes") / "tinymath"
PROMPT = "{document}\n\nQuestion: {question}\nAnswer:"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("document", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--model", default=str(TINYMATH / "model"))
    given = parser.parse_args()

    try:
        answer(given)
    except (SharegenError, OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        sys.exit(f"long_document.py: error: {given.document}: {why}")


def answer(given: argparse.Namespace) -> None:
    document = given.document.read_text(encoding="utf-8")
    prompts = [PROMPT.format(document=document, question=each) for each in given.questions]
    with LLM(given.model) as llm:
        params = SamplingParams(temperature=0, max_tokens=64, stop=["\n"])
        outputs = llm.generate(prompts, params)
    for question, output in zip(given.questions, outputs, strict=True):
        print(f"{question} {output.outputs[0].text.strip()}")
    asked = sum(len(output.prompt_token_ids) for output in outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    print(f"prompt tokens: {asked:,} asked, {asked - cached:,} computed")


if __name__ == "__main__":
    main()
