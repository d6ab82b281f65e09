"""Step-wise search with a scorer of one's own, against the majority vote at as many tokens.

A chain of thought is drawn a line at a time. A scorer, which may be a process reward model, sees
the lines so far; a line that it finds bad is drawn again from the line before, and a problem that
has answers enough is cancelled. What chains share is computed and stored once.

    python examples/tree_search.py --problems 40
"""

from __future__ import annotations

import argparse
import json
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from sharegen import LLM, SamplingParams

TINYMATH = files("sharegen.recipes") / "tinymath"
LINE = SamplingParams(temperature=1.0, max_tokens=64, stop=["\n"])
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}

Scorer = Callable[[str, Sequence[str]], float]


def verify(prompt: str, steps: Sequence[str]) -> float:
    """The share of the newest line's equations that are right; 1 where it has none."""
    right = [
        (int(b) > 0 or sign != "/") and SIGNS[sign](int(a), int(b)) == int(result)
        for a, sign, b, result in EQUATION.findall(steps[-1])
    ]
    return sum(right) / len(right) if right else 1.0


def search(
    llm: LLM, prompts: Sequence[str], score: Scorer, chains: int, retries: int = 3
) -> tuple[list[Counter[str]], int]:
    """Answers of each prompt, and the tokens that were drawn for all of them.

    chains: that begin for a prompt; retries: of a line that scores below 1/2.
    """
    answers: list[Counter[str]] = [Counter() for _ in prompts]
    above: dict[
        int, tuple[int, list[str], Any, int]
    ] = {}  # prompt, lines, their last, retries left
    running: dict[int, set[int]] = defaultdict(set)
    tokens = 0

    def draw(root: int, steps: list[str], last: Any, left: int) -> None:
        key = llm.fork(last, LINE)
        above[key] = root, steps, last, left
        running[root].add(key)

    stream = llm.stream(prompts, replace(LINE, n=chains), keep=True)
    for key, line in stream:
        root, before, last, left = above.get(key, (key, [], None, 0))
        steps = [*before, line.text]
        tokens += len(line.token_ids)
        if "####" in line.text:
            answers[root][line.text.partition("####")[2].strip()] += 1
            if is_decided(answers[root], chains):
                for other in {root, *running.pop(root, ())}:
                    tokens += sum(len(t) for (k, _), t in llm.running().items() if k == other)
                    llm.cancel(other)
        elif score(prompts[root], steps) >= 0.5:
            draw(root, steps, line, retries)
        elif left:
            draw(root, before, last, left - 1)
    return answers, tokens


def is_decided(answers: Counter[str], chains: int) -> bool:
    """Whether no further chain can change the winner."""
    (_, most), second = answers.most_common(1)[0], sorted(answers.values())[-2:-1] or [0]
    return most - second[0] > chains - answers.total()


def vote(llm: LLM, prompts: Sequence[str], tokens: int) -> tuple[list[Counter[str]], int]:
    """Answers of whole samples, of every prompt as many as come to `tokens`, rounded up."""
    whole = SamplingParams(temperature=1.0, max_tokens=256, stop=["\n\n"])
    answers: list[Counter[str]] = [Counter() for _ in prompts]
    drawn = 0
    while drawn < tokens:
        for counted, output in zip(answers, llm.generate(prompts, whole), strict=True):
            [sample] = output.outputs
            drawn += len(sample.token_ids)
            if "####" in sample.text:
                counted[sample.text.partition("####")[2].strip()] += 1
    return answers, drawn


def accuracy(answers: Sequence[Counter[str]], gold: Sequence[str]) -> float:
    winners = [counted.most_common(1)[0][0] if counted else "" for counted in answers]
    return sum(map(str.__eq__, winners, gold)) / len(gold)


def tinymath(count: int) -> tuple[list[str], list[str]]:
    """Prompts of the bundled problems, with eight worked examples, and the right answers."""
    rows = {
        name: [json.loads(line) for line in (TINYMATH / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "test")
    }
    examples = "".join(
        f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows["train"][:8]
    )
    asked = rows["test"][:count]
    prompts = [f"{examples}Question: {row['question']}\nAnswer:" for row in asked]
    return prompts, [row["answer"].partition("####")[2].strip() for row in asked]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--chains", type=int, default=4)
    given = parser.parse_args()
    prompts, gold = tinymath(given.problems)
    with LLM(str(TINYMATH / "model")) as llm:
        searched, tokens = search(llm, prompts, verify, given.chains)
        voted, as_many = vote(llm, prompts, tokens)
    print(f"search  accuracy {accuracy(searched, gold):.1%}  tokens {tokens:,}")
    print(f"vote    accuracy {accuracy(voted, gold):.1%}  tokens {as_many:,}")


if __name__ == "__main__":
    main()
