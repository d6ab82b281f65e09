"""What the compiler says of a program that it refuses: the sandbox itself tells no text.

Nothing of the program runs. Compiling itself can take any time and memory, and so happens in the
process that has limits for both.
"""

from __future__ import annotations

from sharegen.common import confined

_SAID = 200  # characters


def compile_error(source: str) -> str | None:
    """The compiler's message with its line; None where it says nothing, or not in time."""
    try:
        return confined.call(_message, source)
    except confined.Exceeded as error:
        return f"compiling it {error}"


def _message(source: str) -> str | None:
    try:
        compile(source, "<program>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"[:_SAID]
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        return (str(error) or type(error).__name__)[:_SAID]
    return None
