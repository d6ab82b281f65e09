"""Small tokenizers made on the spot: byte-level BPE, SentencePiece's way, and plain bytes."""

from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

TEXT = [
    "Question: Janet has 3 ducks. How many eggs?\nAnswer: 16 - 3 = 13. The answer is 13.\n\n",
    "Frage: Wie geht's? Übermäßig schöne Grüße aus Köln, naïve façade, déjà vu.\n\n",
    "質問: 日本語のテキストです。答えは十三です。\n\n",
    "Вопрос: сколько будет два плюс два? Ответ: четыре.\n\n",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))  # ok 🙂🚀\n",
]


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's and Llama-3's kind; small, so that most characters beyond ASCII are split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@cache
def sentence_piece() -> PreTrainedTokenizerFast:
    """Llama-2's and Gemma's kind: spaces as a mark, unknown characters as <0xNN> bytes."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    words = sorted({word for line in TEXT[:2] for word in line.split()})
    letters = sorted({letter for line in TEXT[:2] for letter in line if letter.isascii()})
    letters = [letter for letter in letters if not letter.isspace()]
    vocab = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    vocab += [(piece, -20.0) for piece in pieces] + [("▁", -3.0), ("\n", -4.0)]
    vocab += [(letter, -6.0) for letter in letters] + [("▁" + word, -5.0) for word in words]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@cache
def python_bytes() -> ByT5Tokenizer:
    """A tokenizer without a Rust backend; one token a byte."""
    return ByT5Tokenizer()
