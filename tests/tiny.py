"""A tiny random Llama with a tokenizer of its own, as a model folder for whole-job tests."""

from __future__ import annotations

import json
from pathlib import Path

CORPUS = [
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\n",
    "Answer: Tom has 3 + 4 = 7 apples.\n#### 7\n\n",
    "Question: A box holds 12 eggs. How many eggs are in 5 boxes?\nAnswer: 12 * 5 = 60\n#### 60",
    "0 1 2 3 4 5 6 7 8 9 . , ? ! $ é ü 日本",
]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_tiny_model(
    folder: Path, *, context: int = 2048, seed: int = 0, chat: bool = True, bos: bool = True
) -> Path:
    """A two-layer Llama of width 32 with a byte-level BPE of 384 tokens that begins with BOS."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(chat=chat, bos=bos)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(*, bos: bool = True, chat: bool = True):  # type: ignore[no-untyped-def]
    """bos: whether it begins a text with BOS by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def large_tokenizer(size: int = 150_000):  # type: ignore[no-untyped-def]
    """The tiny one with as many tokens as those of large models: pickled it is of megabytes, as
    theirs are. No text is made of the tokens that it has besides."""
    from tokenizers import Tokenizer

    tokenizer = tiny_tokenizer()
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = backend["model"]["vocab"]
    vocabulary.update({f"never drawn {i}": i for i in range(len(vocabulary), size)})
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(backend))
    return tokenizer
