"""What tinymath is trained on: the tokenizer, and rows of few-shot-formatted problems.

A row is what the recipe asks at run time, continued: BOS, then problem after problem in the format
of the recipe's examples, so that every problem but the first has examples before it. Digits are
tokens of their own and whitespace never joins a word across a problem's end, so a problem has the
same tokens wherever it stands and problems can be tokenised apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .problems import SLIPS, STREAM_SEED, Problem, generate, held_out_questions

# The recipe's texts: an example is HEAD + TAIL, a prompt is the examples and a HEAD.
HEAD = "Question: {question}\nAnswer:"
TAIL = " {answer}\n\n"
FEW_SHOT = 8  # examples before a problem at run time

VOCABULARY = 1024
BOS, EOS, PAD = "<s>", "</s>", "<pad>"
ROW = 1024  # tokens a row: the examples, a question and its answer fit

# Digits stand alone. Words take the space before them, words and number signs also the one before a
# digit, and a sentence's full stop takes its line end, which together save a third of the tokens.
# A colon takes no space after it: the prompt ends with one.
_PIECES = r"[.?!]?\n+| ?\p{L}+(?: (?=\p{N}))?|#+ ?|\p{N}| ?[^\s\p{L}\p{N}#]+|\s"


def example(problem: Problem) -> str:
    return (HEAD + TAIL).format(question=problem.question, answer=problem.answer)


def prompt(examples: list[Problem], problem: Problem) -> str:
    return "".join(map(example, examples)) + HEAD.format(question=problem.question)


def train_tokenizer(problems: list[Problem]) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `VOCABULARY` tokens: any text round-trips, ours is short."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(example, problems), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


class RowMaker:
    """Makes the rows of shard after shard; a plain callable, so that processes can share it."""

    def __init__(self, tokenizer_file: Path, rows: int) -> None:
        self.tokenizer_file = tokenizer_file
        self.rows = rows

    def __call__(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `uint16 [rows, ROW]` and, for each, whether it belongs to an answer.

        A row is filled with whole problems and padded; EOS in place of the last line end closes it.
        """
        tokenizer = Tokenizer.from_file(str(self.tokenizer_file))
        vocabulary = tokenizer.get_vocab()
        bos, eos, pad = (vocabulary[token] for token in (BOS, EOS, PAD))
        tokens = np.full((self.rows, ROW), pad, dtype=np.uint16)
        in_answer = np.zeros((self.rows, ROW), dtype=bool)
        tokens[:, 0] = bos
        row, at = 0, 1
        for head, tail in _tokenised(tokenizer, STREAM_SEED + shard):
            if at + len(head) + len(tail) > ROW:
                tokens[row, at - 1] = eos
                row, at = row + 1, 1
                if row == self.rows:
                    break
            middle, end = at + len(head), at + len(head) + len(tail)
            tokens[row, at:middle] = head
            tokens[row, middle:end] = tail
            in_answer[row, middle:end] = True
            at = end
        return tokens, in_answer


def _tokenised(tokenizer: Tokenizer, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Training problems from `seed` on, as the tokens of their heads and tails."""
    held_out = held_out_questions()
    problems = (problem for problem in generate(seed, SLIPS) if problem.question not in held_out)
    while True:
        chunk = list(islice(problems, 1000))
        heads = tokenizer.encode_batch(
            [HEAD.format(question=p.question) for p in chunk], add_special_tokens=False
        )
        tails = tokenizer.encode_batch(
            [TAIL.format(answer=p.answer) for p in chunk], add_special_tokens=False
        )
        yield from zip((h.ids for h in heads), (t.ids for t in tails), strict=True)
