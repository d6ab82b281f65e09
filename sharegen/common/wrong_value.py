"""What is wrong with a value, in our words: pydantic speaks of inputs, parsing and instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_WORDS = {
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be above {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be below {lt}",
    "finite_number": "it must be a finite number",
    "int_parsing": "it must be a whole number",
    "int_parsing_size": "it must be a whole number of fewer digits",
    "int_type": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "string_type": "it must be a text",
    "string_too_short": "it must not be empty",
    "string_too_long": "it must have at most {max_length} characters",
    "list_type": "it must be a list",
    "sequence_str": "it must be a list",
    "too_short": "it must have at least {min_length} of them",
    "too_long": "it must have at most {max_length} of them",
    "dict_type": "it must be a mapping",
    "model_type": "it must be a mapping",
    "literal_error": "it must be {expected}",
    "value_error": "{error}",
}


def in_words(error: ErrorDetails) -> str:
    """The error as the end of a sentence that names the value."""
    known = _WORDS.get(error["type"])
    if known is None:
        message = error["msg"].replace("Input should", "it should")
        return message[:1].lower() + message[1:]
    return known.format(**error.get("ctx", {}))
