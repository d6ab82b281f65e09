"""The program in what a model wrote: what continues a prompt, or the code in a chat's answer.

The rules, in their order, are in docs/reference/programs.md. Nothing here runs anything: code is
parsed, and what it defines, reads and writes tells the program from examples, outputs and commands.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence

from sharegen.common.program_tests import CallTests, CheckTests, ProgramProblem
from sharegen.common.python_source import leading_part, parsed
from sharegen.results.scoring.fences import Block, blocks_of, is_python
from sharegen.results.scoring.snippet import Snippet, gathered

_END = re.compile(
    r"""(?<!['"])(?:<\|(?:endoftext|im_end|im_start|eot_id|end_of_text|eom_id|end|return)\|>"""
    r"""|</s>|<end_of_turn>|<\uff5cend\u2581of\u2581sentence\uff5c>)(?!['"])"""
)
_THOUGHT = re.compile(r".*(?:</think(?:ing)?>|</reasoning>|<\|channel\|>final<\|message\|>)", re.S)
_UNFINISHED = re.compile(r"<(?:think(?:ing)?|reasoning)>.*", re.S)
_TAG = re.compile(r"\[(/?)(?:PYTHON|CODE)\]|<(/?)(?:code|python)(?: [^<>]*)?>", re.I)
_INLINE = re.compile(r"```(?:python3?\b|py\b)?([^`\n]+)```")
_STARTS = re.compile(r"(?:def|class|import|from|async|@)\b|@")
_PROMPTS = (">>> ", "... ")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.M)
_CODE = re.compile(
    r"^[ \t]*(?:(?:def|class|import|from|async|for|while|if|try|with)\b.*|@\w.*"
    r"|[A-Za-z_][\w., ]*=.*|print\(.*)$",
    re.M,
)
_TRIES = 16
"""Beginnings and ends of code that are tried in a text that is none as a whole."""
_LONGEST = 50_000
"""Characters of such a text."""


def completion_of(text: str, is_chat: bool, problem: ProgramProblem) -> str:
    """What to put behind the prompt's stub to have a program.

    is_chat: the text is a chat's answer, of which the program is a part; else it continues the
    stub, and is taken as it is where that is Python.
    """
    if is_chat:
        answer = _without_thoughts(text)
        found = _in_answer(answer, problem)
        return _behind(problem.stub, Snippet(_last_code(answer)) if found is None else found)
    if _fits(text, problem):
        return text
    beginning = _END.split(text, maxsplit=1)[0]
    for part in (beginning, _FENCE.split(beginning, maxsplit=1)[0]):
        if part != text and _says_something(part) and _fits(part, problem):
            return part
    found = _in_answer(_without_thoughts(text), problem)
    return text if found is None else _behind(problem.stub, found)


def _fits(completion: str, problem: ProgramProblem) -> bool:
    return parsed(problem.program(completion)) is not None


def _says_something(code: str) -> bool:
    """Whether it is more than comments, which headings look like."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in code.splitlines())


def _in_answer(answer: str, problem: ProgramProblem) -> Snippet | None:
    """The program in a chat's answer; None where nothing is what the problem asks for."""
    blocks = _blocks(answer)
    likely = [block for block in blocks if _is_likely(block)]
    others = [block for block in blocks if not _is_likely(block)]
    for choice in (likely, others):
        found = _chosen([_repaired(block.text) for block in choice], problem)
        if found is not None:
            return found
    return _in_prose(answer, problem)


def _last_code(answer: str) -> str:
    """What is most like a program where nothing is one: it says what is wrong with it."""
    blocks = [block for block in _blocks(answer) if _is_likely(block)]
    tagged = [block for block in blocks if block.language]
    return (tagged or blocks)[-1].text if blocks else answer


def _blocks(answer: str) -> list[Block]:
    """The blocks of an answer, and those within a block that is Markdown itself."""
    found = list(blocks_of(answer)) or list(blocks_of(_with_fences(answer)))
    return [inner for block in found for inner in _inside(block)]


def _inside(block: Block) -> list[Block]:
    is_markdown = block.language in ("", "markdown", "md")
    inner = list(blocks_of(block.text)) if is_markdown and "```" in block.text else []
    return [block, *inner] if inner and Snippet(block.text).tree is None else [block]


def _is_likely(block: Block) -> bool:
    return not block.language or is_python(block.language)


def _without_thoughts(text: str) -> str:
    """An answer without the reasoning before it, and up to where the model ended it."""
    thought = _THOUGHT.match(text)
    answer = _UNFINISHED.sub("", text[thought.end() if thought else 0 :], count=1)
    return _END.split(answer, maxsplit=1)[0]


def _with_fences(text: str) -> str:
    """A text whose code stands between tags, or between fences on one line, with fences instead."""
    text = _INLINE.sub(lambda code: f"\n```python\n{code[1].strip()}\n```\n", text)
    return _TAG.sub(lambda tag: "\n```\n" if tag[1] or tag[2] else "\n```python\n", text)


def _repaired(code: str) -> Snippet:
    """A block as Python: further in, with a fence behind its last line, or commands in it."""
    as_it_is = Snippet(code)
    if as_it_is.tree is not None:
        return as_it_is
    without_fence = code.partition("```")[0]
    shell = "".join(line for line in code.splitlines(keepends=True) if line[:1] not in ("!", "%"))
    session = "".join(f"{line[4:]}\n" for line in code.splitlines() if line[:4] in _PROMPTS)
    for text in (textwrap.dedent(code), without_fence, shell, session):
        if text != code and Snippet(text).tree is not None:
            return Snippet(text)
    return as_it_is


def _chosen(snippets: Sequence[Snippet], problem: ProgramProblem) -> Snippet | None:
    """The program among the pieces of an answer, with what it needs of the others."""
    names = entry_points(problem)
    find = _defining if names else _script
    found = find(snippets, names)
    if found is None and names and problem.stub:
        found = _body(snippets)
    if found is None:
        return None
    place, main = found
    known = Snippet(_closed(problem.stub)).defines
    wanted = (names | main.missing) - main.defines - (known - names)
    if main.returns:
        return main
    before, after = snippets[:place], snippets[place + 1 :]
    program = Snippet(main.after_future(gathered(wanted, before, after)))
    if names or program.runs:
        return program
    calls = [each for each in after if each.runs and each.missing & program.defines]
    return Snippet(program.text + calls[0].text) if calls else program


def entry_points(problem: ProgramProblem) -> set[str]:
    """The names that a program must define; none for one that reads its input."""
    if isinstance(problem.tests, CheckTests):
        return set(problem.tests.functions)
    return {problem.tests.function} if isinstance(problem.tests, CallTests) else set()


def _defining(snippets: Sequence[Snippet], names: set[str]) -> tuple[int, Snippet] | None:
    """The last piece that defines what is asked for; one that was cut behind it will do."""
    for shorten in (False, True):
        for place, snippet in reversed(list(enumerate(snippets))):
            if shorten and snippet.tree is None:
                snippet = Snippet(leading_part(snippet.text[:_LONGEST], _TRIES))
            if snippet.writes_out & names:
                return place, snippet
    return None


def _script(snippets: Sequence[Snippet], names: set[str]) -> tuple[int, Snippet] | None:
    """The last piece among those that do the most: read input and print, read, print."""
    found: tuple[int, Snippet] | None = None
    most = 0
    for place, snippet in enumerate(snippets):
        does = 2 * snippet.reads + snippet.writes
        if does >= max(most, 1):
            found, most = (place, snippet), does
    return found


def _body(snippets: Sequence[Snippet]) -> tuple[int, Snippet] | None:
    """The last piece that is the rest of a function."""
    bodies = [(place, each) for place, each in enumerate(snippets) if each.returns]
    return bodies[-1] if bodies else None


def _in_prose(answer: str, problem: ProgramProblem) -> Snippet | None:
    """Code without fences, with sentences before and behind it."""
    names = entry_points(problem)
    seen = 0
    for start in itertools.islice(_CODE.finditer(answer[:_LONGEST]), _TRIES):
        if start.start() < seen:
            continue
        piece = Snippet(leading_part(_as_far_in(answer[start.start() : _LONGEST]), _TRIES))
        if piece.writes_out & names or (not names and piece.writes):
            return piece
        seen = start.start() + len(piece.text)
    return None


def _as_far_in(text: str) -> str:
    """The lines that are indented as much as the first one, without that."""
    indent = text[: len(text) - len(text.lstrip(" \t"))]
    lines = text.splitlines(keepends=True)
    inside = itertools.takewhile(lambda line: not line.strip() or line.startswith(indent), lines)
    return "".join(line.removeprefix(indent) for line in inside)


def _behind(stub: str, program: Snippet) -> str:
    """What to put behind a stub: a body, or a program that replaces the function it begins."""
    if not stub:
        return program.text
    inner = _indent_behind(stub)
    if program.returns:
        return textwrap.indent(program.text, inner)
    if program.tree is None and not _STARTS.match(program.text):
        return program.text
    rest = "" if parsed(stub) is not None else f"\n{inner}pass\n"
    return f"{rest}\n{program.without_future}"


def _closed(stub: str) -> str:
    """A stub as whole code: where there is not even a docstring, with a body."""
    return stub if parsed(stub) is not None else f"{stub}\n{_indent_behind(stub)}pass\n"


def _indent_behind(stub: str) -> str:
    """The indent of the lines that continue a stub."""
    last = stub.rstrip().rpartition("\n")[2]
    indent = last[: len(last) - len(last.lstrip())]
    return f"{indent}    " if last.endswith(":") else indent
