"""Self-consistency: many chains of thought for each problem, and the majority of their answers.

The bundled recipe does all of it in one command (`sharegen run self-consistency`). Here it is
done by hand, for a prompt of one's own.

    python examples/self_consistency.py --problems 20 --samples 8
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from importlib.resources import files

from sharegen import LLM, SamplingParams

TINYMATH = files("sharegen.recipes") / "tinymath"


def rows(name: str) -> list[dict[str, str]]:
    """The bundled problems: a `question`, and an `answer` that ends in "#### N"."""
    return [json.loads(line) for line in (TINYMATH / f"{name}.jsonl").read_text().splitlines()]


def answer_in(text: str) -> str | None:
    return text.partition("####")[2].strip() or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=20)
    parser.add_argument("--samples", type=int, default=8)
    given = parser.parse_args()

    examples = "".join(
        f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows("train")[:8]
    )
    asked = rows("test")[: given.problems]
    prompts = [f"{examples}Question: {row['question']}\nAnswer:" for row in asked]
    params = SamplingParams(n=given.samples, temperature=1.0, max_tokens=256, stop=["\n\n"])
    with LLM(str(TINYMATH / "model")) as llm:  # the examples are computed and stored once
        outputs = llm.generate(prompts, params)

    single = voted = 0.0
    for row, output in zip(asked, outputs, strict=True):
        gold = answer_in(row["answer"])
        answers = [answer_in(sample.text) for sample in output.outputs]
        read = Counter(answer for answer in answers if answer is not None)
        winner = read.most_common(1)[0][0] if read else None
        single += answers.count(gold) / len(answers)
        voted += winner == gold
    print(f"one sample  {single / len(asked):.1%}")
    print(f"the vote    {voted / len(asked):.1%}")


if __name__ == "__main__":
    main()
