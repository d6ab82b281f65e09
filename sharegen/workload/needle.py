"""Facts planted through a long document, and questions about them: needles in a haystack.

After Hydragen (Juravsky et al., 2024), section 4.3: one long document, many short questions whose
answers stand somewhere in it, and few-shot examples that ask for facts of the same document. The
text is made here, of any length, from a seed; it says nothing that a model could know beforehand.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sharegen.errors import DataError
from sharegen.workload.dataset import DatasetRows, Row
from sharegen.workload.sections import Needles

_FIRST = (
    "Ada Bela Cora Dario Edda Fabio Greta Hugo Ilse Jonas Karin Leo Mara Nils Olga Pavel Quirin "
    "Rosa Sven Tilda Udo Vera Willa Xenia Yann Zoe Anton Bruna Carl Dora Emil Frida Gerda Hanno"
)
_LAST = (
    "Abel Berger Castell Dorn Engel Falk Grau Holm Iven Jansen Kramer Lind Moser Nolte Olsen "
    "Prent Quast Reuter Sand Thorn Ulmer Vogt Wendel Xaver Ysold Zander Amsel Brock Crane Dahl "
    "Eckert Finch"
)

_WHEN = "In spring|At noon|Before dawn|Every winter|On market days|After the rain|Late at night"
_WHO = (
    "the ferryman|an old baker|the night porter|a young surveyor|the clockmaker|two fishermen|"
    "the mayor's cousin|a travelling choir|the lighthouse keeper|some children from the mill"
)
_DID = (
    "walked along the canal|counted the barrels in the yard|mended the nets|"
    "talked about the harvest|carried letters up the hill|waited for the mail coach|"
    "painted the garden fence|listened to the bells|argued over a game of chess|"
    "looked for mushrooms"
)
_AND = (
    "and nobody thought much of it|while the wind turned north|because the bridge was closed|"
    "as their parents had done|until the lamps were lit|and the dog came along|"
    "although the road was wet|and then it grew quiet"
)
_SENTENCES_A_PARAGRAPH = 7
_PLANTED = "The locker of {name} opens with the number {number}."
_ASKED = "Which number opens the locker of {name}?"


@dataclass(frozen=True)
class Fact:
    """A sentence to plant, what asks for it, and the answer."""

    sentence: str
    question: str
    answer: str


def needle_rows(needles: Needles, split: str) -> DatasetRows:
    """The rows of a generated document: `document`, `question`, `answer`.

    split: "train" has the facts that the few-shot examples ask for, "test" the others. Raises
    DataError for more facts than there are names.
    """
    chance = random.Random(f"needles {needles.seed}")
    facts = made_facts(needles.examples, needles.questions, chance)
    planted = [fact.sentence for fact in facts]
    filler = made_sentences(needles.words - words_of(planted), chance)
    document = in_paragraphs(plant(filler, planted, chance))
    # What is asked for first should not stand first.
    chance.shuffle(facts)
    asked = facts[: needles.examples] if split == "train" else facts[needles.examples :]
    rows = [
        Row(
            index,
            f"needle {index}",
            {"document": document, "question": fact.question, "answer": fact.answer},
        )
        for index, fact in enumerate(asked)
    ]
    return DatasetRows(rows, hashlib.blake2b(document.encode(), digest_size=16).hexdigest())


def made_facts(examples: int, questions: int, chance: random.Random) -> list[Fact]:
    """Facts of our making, for examples and questions. Raises DataError for too many."""
    names = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    total = examples + questions
    if total > len(names):
        most = len(names) - examples
        raise DataError(f"dataset.needles.questions is {questions}: at most {most}")
    numbered = [(name, chance.randrange(1000, 10000)) for name in chance.sample(names, total)]
    return [
        Fact(_PLANTED.format(name=name, number=number), _ASKED.format(name=name), str(number))
        for name, number in numbered
    ]


def words_of(sentences: list[str]) -> int:
    return sum(len(sentence.split()) for sentence in sentences)


def plant(sentences: list[str], planted: list[str], chance: random.Random) -> list[str]:
    """The sentences with the planted ones spread evenly through them."""
    found: list[str] = []
    for index, sentence in enumerate(planted):
        start, end = (len(sentences) * i // len(planted) for i in (index, index + 1))
        passage = sentences[start:end]
        passage.insert(chance.randint(0, len(passage)), sentence)
        found += passage
    return found


def in_paragraphs(sentences: list[str]) -> str:
    """Sentences as a text, a few in a line."""
    paragraphs = [
        " ".join(sentences[start : start + _SENTENCES_A_PARAGRAPH])
        for start in range(0, len(sentences), _SENTENCES_A_PARAGRAPH)
    ]
    return "\n".join(paragraphs)


def made_sentences(words: int, chance: random.Random) -> list[str]:
    """Sentences of about so many words that say nothing of note."""

    def sentences() -> Iterator[str]:
        left = words
        while left > 0:
            parts = [chance.choice(group.split("|")) for group in (_WHEN, _WHO, _DID, _AND)]
            sentence = "{}, {} {}, {}.".format(*parts)
            left -= len(sentence.split())
            yield sentence

    return list(sentences())
