"""Structured outputs as grammars of llguidance, each tried where a crash costs nothing.

The library is native code: a schema can make it overflow its stack or loop, and a process with it.
So a process with limits compiles every grammar first, and follows it for some bytes. What it has
borne is compiled where the engine is, and nothing else.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from sharegen.common import confined, json_schema
from sharegen.common.extras import install
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError

_SECONDS = 10.0  # of CPU time: a schema of 5,000 properties takes 4
_KEPT = 4096  # grammars that were tried
_SHOWN = 200  # characters of the library's own words
_TRIED = 64  # bytes that a grammar is followed for before anything runs
_BYTES = (1 << 256) - 1  # the tokens of llguidance's tokenizer of bytes, without its last one
_ANY_OBJECT = {"type": "object"}


def library() -> ModuleType:
    """Import llguidance. Raises UsageError where it is not installed."""
    try:
        import llguidance
    except ImportError:
        raise UsageError(
            f"structured_outputs need the library llguidance: {install('structured')}"
        ) from None
    return llguidance


def prepared(params: StructuredOutputsParams) -> str:
    """The grammar in llguidance's own format, which it compiles without harm.

    Raises UsageError, in one line, for what does not parse, what no text is of, and what the
    library does not survive. An expression that explodes is refused where it does so within a few
    bytes, whatever they are. All without a model: what its tokens cannot spell shows when it is
    loaded.
    """
    text, fault = _tried(params)
    if fault is not None:
        raise UsageError(f"structured_outputs.{params.kind}: {fault}")
    return text


@lru_cache(maxsize=_KEPT)
def _tried(params: StructuredOutputsParams) -> tuple[str, str | None]:
    """The grammar, or what is wrong with it; both are kept, for a crash costs a process."""
    library()
    try:
        return confined.call_for(_SECONDS, try_out, params)
    except confined.Exceeded as error:
        return "", f"compiling it {error}"


def try_out(params: StructuredOutputsParams) -> tuple[str, str | None]:
    """Compile a grammar and follow it for some bytes: itself, or what is wrong with it."""
    llguidance = library()
    try:
        text = _source(llguidance, params)
    except ValueError as error:
        return "", first_line(str(error))
    return text, _fault(llguidance, text, params.kind)


def _source(llguidance: ModuleType, params: StructuredOutputsParams) -> str:
    """The grammar in llguidance's own format. Raises ValueError where it cannot be written so."""
    match params.kind:
        case "regex":
            return str(llguidance.grammar_from("regex", params.regex))
        case "choice":
            assert params.choice is not None
            return str(llguidance.grammar_from("regex", "|".join(map(_literally, params.choice))))
        case "grammar":
            return str(llguidance.grammar_from("grammar", params.grammar))
    assert params.json_object or isinstance(params.json, str)
    schema = _ANY_OBJECT if params.json is None else json.loads(str(params.json))
    json_schema.check(schema)
    schema = json_schema.without_dead_patterns(schema, _takes)
    spaces = {"whitespace_flexible": not params.disable_any_whitespace}
    return _of_schema(llguidance, schema, spaces)


def _of_schema(llguidance: ModuleType, schema: Any, spaces: dict[str, bool]) -> str:
    text = json.dumps(schema, ensure_ascii=False)
    return str(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=spaces))


def _literally(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def first_line(said: str) -> str:
    """What the library says of a grammar, in one line: without the place marked below it."""
    lines = [line.strip() for line in said.splitlines()]
    wrong = next((line for line in lines if line.startswith("error: ")), None)
    return (wrong or lines[0] if lines else "no reason given").removeprefix("error: ")[:_SHOWN]


def _fault(llguidance: ModuleType, grammar: str, kind: str) -> str | None:
    failed, said = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if failed:
        return first_line(said[0])
    matcher = llguidance.LLMatcher(_byte_tokenizer(), grammar, log_level=0)
    # What a schema's text comes to later fails the samples that get there, and no others.
    wanted = _TRIED if kind in ("regex", "grammar") else 1
    for place in range(_TRIED):
        mask = _next_bytes(matcher)
        if matcher.is_error() or not (mask or matcher.is_accepting()):
            return (why(matcher) or "no text satisfies it") if place < wanted else None
        if not mask:
            return None
        matcher.consume_token(mask.bit_length() - 1)
    return None


@cache
def _byte_tokenizer() -> Any:
    return library().LLTokenizer("byte")


def _next_bytes(matcher: Any) -> int:
    return int.from_bytes(matcher.compute_bitmask(), "little") & _BYTES


def _takes(schema: Any, begin: str) -> bool:
    """Whether a text of the schema begins so, and goes on."""
    llguidance = library()
    grammar = _of_schema(llguidance, schema, {"whitespace_flexible": False})
    if llguidance.LLMatcher.validate_grammar_with_warnings(grammar)[0]:
        return False
    matcher = llguidance.LLMatcher(_byte_tokenizer(), grammar, log_level=0)
    return matcher.consume_tokens(list(begin.encode())) and bool(_next_bytes(matcher))


def why(matcher: Any) -> str | None:
    """Why a matcher of llguidance gave up; None where it did not, and nothing may follow."""
    said = first_line(matcher.get_error())
    return said if matcher.is_error() and not said.startswith("NoExtension") else None
