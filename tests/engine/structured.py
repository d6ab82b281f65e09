"""A tiny model with a tokenizer of bytes and merges, and random schemas and regular expressions."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from functools import cache
from typing import Any

import jsonschema
import torch
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from tests.engine.jobs import CheckedEngine, make_engine
from tests.tiny import tiny_tokenizer


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@cache
def letters() -> PreTrainedTokenizerFast:
    """A token a letter, few enough for the tiny models of the table."""
    alphabet = [*map(chr, range(ord("!"), ord("~") + 1)), "Ġ"]
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


@cache
def original() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer()) + 5,  # as many models, it has ids that the tokenizer has not
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@cache
def model() -> LoadedModel:
    torch.manual_seed(0)
    copy = LlamaForCausalLM(deepcopy(original().config))
    copy.load_state_dict(original().state_dict())
    return load_model(copy)


def engine(lag: int = 0, **config: Any) -> CheckedEngine:
    """lag: as on a GPU, how many steps the host is behind."""
    made = make_engine(model(), tokenizer=tokenizer(), **({"max_sequences": 16} | config))
    made._lag = lag
    return made


def prompt(text: str = "Question: Tom has 3 apples") -> list[int]:
    return tokenizer().encode(text)


def request(
    key: int, params: SamplingParams | None = None, text: str = "Answer:", **structured: Any
) -> Request:
    """One request with structured outputs of these, for `params.n` samples."""
    base = vars(params or SamplingParams(max_tokens=40))
    asked = StructuredOutputsParams(**structured) if structured else None
    made = SamplingParams(**base | {"structured_outputs": asked})
    return Request(key, prompt(text), made, range(made.n))


def parses(text: str, asked: StructuredOutputsParams) -> bool:
    """Whether a text is of what is asked, as others than llguidance say."""
    if asked.regex is not None:
        return re.fullmatch(asked.regex, text) is not None
    if asked.choice is not None:
        return text in asked.choice
    if asked.json_object:
        return isinstance(json.loads(text), dict)
    assert isinstance(asked.json, str)
    jsonschema.validate(json.loads(text), json.loads(asked.json))
    return True


# -- what there may be -------------------------------------------------------------------------

_names = st.sampled_from(["a", "b1", "näme", 'q"uote', "a b"])
_leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-20, 20),
        st.integers(0, 300),
    ),
    st.builds(lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
              st.integers(0, 3), st.integers(0, 4)),
    st.builds(lambda pattern: {"type": "string", "pattern": f"^{pattern}$"},
              st.sampled_from(["[a-c]{1,4}", "x?y+z{2}", "é|日本|ok"])),
    st.builds(lambda values: {"enum": values},
              st.lists(st.sampled_from(["red", "grün", 'q"', 1, -2.5, None, True]), min_size=1,
                       max_size=3, unique_by=repr)),
    st.builds(lambda value: {"const": value}, st.sampled_from(["one", 17, None, [1, "2"]])),
)  # fmt: skip


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(properties: dict[str, Any], optional: int) -> dict[str, Any]:
        names = list(properties)
        return {
            "type": "object",
            "properties": properties,
            "required": names[: len(names) - optional],
            "additionalProperties": False,
        }

    return st.builds(of, st.dictionaries(_names, inner, max_size=3), st.integers(0, 1))


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(items: Any, least: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}

    return st.builds(of, inner, st.integers(0, 2), st.integers(0, 2))


def _either(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(lambda kinds: {"anyOf": kinds}, st.lists(inner, min_size=1, max_size=3))


schemas = st.recursive(
    _leaves, lambda inner: st.one_of(_objects(inner), _arrays(inner), _either(inner)), max_leaves=5
)

# Python and Rust know digits, letters and spaces of different versions of Unicode.
_pieces = st.sampled_from(["a", "[b-e]", "[0-9]", "(?:xy|z)", "é", "\\.", "[^a-z]", " "])
_counts = st.sampled_from(["", "?", "{2}", "{1,3}", "{0,4}"])
regexes = st.lists(st.builds(str.__add__, _pieces, _counts), min_size=1, max_size=5).map("".join)

asked = st.one_of(
    st.builds(
        lambda schema, bare: StructuredOutputsParams(json=schema, disable_any_whitespace=bare),
        schemas,
        st.booleans(),
    ),
    st.builds(lambda text: StructuredOutputsParams(regex=text), regexes),
    st.builds(
        lambda texts: StructuredOutputsParams(choice=texts),
        st.lists(st.text(max_size=5), min_size=1, max_size=4),
    ),
)
