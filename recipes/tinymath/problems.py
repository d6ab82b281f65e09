"""Word problems at will: a seed gives a stream of questions with step-by-step answers.

A problem is an opening and some sequels (stories.py) with numbers drawn until every step comes out
as a whole number of at most `LARGEST`. A small model learns all of this in minutes, and then every
sample is right; so the stream that it is trained on has slips: now and then a step's result has one
wrong digit, and the chain goes on from there. The model learns to slip as often, at a random step
and in a random way, which is what a vote can mend. Problems that ship have none.

The rows have GSM8K's schema: `question`, and `answer` with one equation a line and `#### N` last.
"""

from __future__ import annotations

import json
import operator
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .stories import NAMES_HE, NAMES_SHE, OPENINGS, SEQUELS, WORDS, Piece

# How hard the problems are: ranges of the numbers in a question, by the letter that stands for
# them in a story, the largest result of a step, and how many steps a chain has.
RANGES = {"d": (3, 9), "c": (12, 98), "h": (112, 989), "t": (1020, 9870)}
LARGEST = 9999
STEPS = (3, 6)
SLIPS = 0.10  # of the steps in the training stream

TRAIN_PROBLEMS = 2400
TEST_PROBLEMS = 200
TEST_SEED, VALIDATION_SEED, TRAIN_SEED = 1, 2, 3
STREAM_SEED = 1000  # training itself draws fresh problems, from the streams of this seed and up

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_PLACEHOLDER = re.compile(r"\{([dcht]\d)\}")


@dataclass(frozen=True)
class Problem:
    question: str
    answer: str

    @property
    def number(self) -> int:
        return int(self.answer.rsplit("#### ", 1)[1])

    @property
    def steps(self) -> int:
        return self.answer.count("\n")


class _Chain:
    """The steps of a problem so far: the quantity in hand, the words in use, the text."""

    def __init__(self, rng: random.Random, slips: float) -> None:
        self.rng = rng
        self.slips = slips
        self.x: int | None = None
        self.kind: str | None = None
        self.question: list[str] = []
        self.lines: list[str] = []
        self.ask = ""
        self.words = _draw_words(rng)

    def extend(self, piece: Piece) -> bool:
        """Append `piece` with numbers under which its steps work out; False if none were found."""
        text = self.rng.choice(piece.texts)
        names = _PLACEHOLDER.findall(text)
        for _ in range(20):
            numbers = {name: self.rng.randint(*RANGES[name[0]]) for name in names}
            equations = self._solve(piece, numbers)
            if equations is not None:
                break
        else:
            return False
        if self.kind is None:
            self.words["noun"] = piece.noun.format(**self.words)
        self.question.append(text.format(**self.words, **numbers))
        for (_, _, _, sentence), (equation, result) in zip(piece.steps, equations, strict=True):
            self.lines.append(sentence.format(eq=equation, **self.words))
            self.x = result
        self.ask = self.rng.choice(piece.asks).format(**self.words)
        self.words["noun"] = piece.noun.format(**self.words)
        self.kind = piece.gives
        return True

    def _solve(self, piece: Piece, numbers: dict[str, int]) -> list[tuple[str, int]] | None:
        """The piece's equations as (text, result); None unless all are whole and in range."""
        values = dict(numbers) if self.x is None else {**numbers, "x": self.x}
        equations = []
        for count, (left, sign, right, _) in enumerate(piece.steps, start=1):
            a = values[left] if left in values else int(left)
            b = values[right] if right in values else int(right)
            result = OPERATORS[sign](a, b)
            if not 1 < result <= LARGEST or (sign == "/" and a % b):
                return None
            if self.slips and self.rng.random() < self.slips:
                result = _slip(self.rng, result)
            values[f"r{count}"] = result
            equations.append((f"{a}{sign}{b}={result}", result))
        return equations

    def problem(self) -> Problem:
        question = " ".join([*self.question, self.ask])
        return Problem(question, "\n".join([*self.lines, f"#### {self.x}"]))


def _draw_words(rng: random.Random) -> dict[str, str]:
    names = rng.sample(NAMES_SHE + NAMES_HE, 3)
    woman = names[0] in NAMES_SHE
    pronouns = ("she", "She", "her", "her") if woman else ("he", "He", "his", "him")
    return {
        **dict(zip("ABC", names, strict=True)),
        **dict(zip(("she", "She", "her", "him"), pronouns, strict=True)),
        **{key: rng.choice(choices) for key, choices in WORDS.items()},
    }


def _slip(rng: random.Random, result: int) -> int:
    """`result` with one digit replaced by another; what is left is at least 2."""
    digits = list(str(result))
    while True:
        place = rng.randrange(len(digits))
        wrong = [*digits]
        wrong[place] = rng.choice([d for d in "0123456789" if d != digits[place]])
        number = int("".join(wrong))
        if number > 1 and wrong[0] != "0":
            return number


def generate(seed: int, slips: float = 0.0) -> Iterator[Problem]:
    """An endless stream of problems, the same for the same seed.

    slips: share of the steps whose result is wrong.
    """
    rng = random.Random(seed)
    while True:
        length = rng.randint(*STEPS)
        chain = _Chain(rng, slips)
        if not chain.extend(rng.choice(OPENINGS)):
            continue
        unused = list(SEQUELS)
        while len(chain.lines) < length:
            room = length - len(chain.lines)
            fitting = [p for p in unused if p.needs == chain.kind and len(p.steps) <= room]
            if not fitting:
                break
            piece = rng.choice(fitting)
            unused.remove(piece)
            chain.extend(piece)
        if len(chain.lines) == length:
            yield chain.problem()


def held_out() -> list[Problem]:
    """The test problems, all different."""
    return _distinct(TEST_SEED, TEST_PROBLEMS, frozenset())


def validation(count: int) -> list[Problem]:
    """Problems that choose the checkpoint; neither trained on nor among the test problems."""
    return _distinct(VALIDATION_SEED, count, held_out_questions())


def training_examples() -> list[Problem]:
    """The training problems that ship as a file, shortest chains first.

    The first ones are the recipe's examples, which every prompt carries: short ones are cheap.
    """
    problems = _distinct(TRAIN_SEED, TRAIN_PROBLEMS, held_out_questions())
    return sorted(problems, key=lambda problem: problem.steps)


@cache
def held_out_questions() -> frozenset[str]:
    return frozenset(problem.question for problem in held_out())


def _distinct(seed: int, count: int, unwanted: frozenset[str]) -> list[Problem]:
    problems: dict[str, Problem] = {}
    stream = generate(seed)
    while len(problems) < count:
        problem = next(stream)
        if problem.question not in unwanted:
            problems.setdefault(problem.question, problem)
    return list(problems.values())


def write_jsonl(path: Path, problems: list[Problem]) -> None:
    rows = (json.dumps({"question": p.question, "answer": p.answer}) for p in problems)
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
