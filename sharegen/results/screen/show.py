"""One problem of a journal, laid out to be read: prompt, samples, answers, vote, gold."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sharegen.common.printable import visible
from sharegen.errors import DataError
from sharegen.results.answers.equality import is_right
from sharegen.results.journal.record import Record
from sharegen.results.scoring.vote import Vote, tally
from sharegen.results.stopping.stopped import Stopped, counted

_SHORT = 4  # lines that are not worth folding
_TAIL = 20  # lines of a prompt that are shown where nobody knows which of them are its own
_UNCOUNTED = " [dim]· beyond the decision: does not count[/]"


def select(records: Iterable[Record], problem_id: str) -> list[Record]:
    """The problem's samples by index, or the line that says why it has none.

    Raises DataError naming the nearest ids when the journal does not know the problem.
    """
    found: list[Record] = []
    others: dict[str, None] = {}
    for record in records:
        if record.problem_id == problem_id:
            found.append(record)
        else:
            others[record.problem_id] = None
    if found:
        return sorted(found, key=lambda record: -1 if record.sample is None else record.sample)
    if not others:
        raise DataError(f"there is no problem {problem_id!r}: the journal is empty")
    nearest = difflib.get_close_matches(problem_id, list(others), n=3, cutoff=0.5)
    some = nearest or list(others)[:3]
    names = ", ".join(repr(name) for name in some)
    hint = "the nearest are" if nearest else "there are, for example,"
    raise DataError(f"there is no problem {problem_id!r} among {len(others)}: {hint} {names}")


@dataclass(frozen=True)
class ShownPrompt:
    """The end of a prompt, and how many lines before it are folded away."""

    text: str
    folded: int = 0

    @classmethod
    def of(cls, prompt: str, own: str | None) -> ShownPrompt:
        """Split a prompt for people. own: what of it is the problem's, where that is known: the
        rest is as in all prompts.
        """
        if own and prompt.endswith(own):
            head = prompt[: -len(own)]
        else:
            head = "".join(prompt.splitlines(keepends=True)[:-_TAIL])
        lines = len(head.splitlines())
        return cls(prompt) if lines <= _SHORT else cls(prompt[len(head) :], lines)


def describe(
    records: list[Record], prompt: ShownPrompt | None, stopped: Stopped | None = None
) -> Iterator[str]:
    """The lines, in Rich's markup, that show one problem.

    records: the problem's, as `select` gives them; prompt: None where it cannot be rendered.
    stopped: the rule that stopped the job, if one did.
    """
    if prompt is not None:
        yield _heading("prompt")
        if prompt.folded:
            yield f"[dim]… {prompt.folded:,} lines before this (--prompt shows them)[/]"
        yield visible(prompt.text)
    votes = tally(counted(records, stopped))
    gold = votes[0].gold if votes else None
    for record in records:
        yield ""
        if not record.is_sample:
            yield _heading("not sampled")
            yield f"[red]{visible(record.error or 'no reason on record')}[/]"
            continue
        counts = stopped is None or stopped.counts(record)
        yield _sample_heading(record, gold) + ("" if counts else _UNCOUNTED)
        if record.error is not None:
            yield f"[red]{visible(record.error)}[/]"
        else:
            yield visible(record.completion)
    for vote in votes:
        if vote.counts or vote.gold is not None:
            yield ""
            yield _heading("vote")
            yield from _vote_lines(vote)
            if stopped is not None:
                yield f"[dim]{_decision(stopped, vote)}[/]"
        if vote.gold is not None:
            yield ""
            yield f"{_heading('gold')} {visible(vote.gold)}"


def _sample_heading(record: Record, gold: str | None) -> str:
    parts = [f"{record.num_tokens} tokens", visible(record.finish_reason or "unknown end")]
    if record.cumulative_logprob is not None:
        parts.append(f"log-probability {record.cumulative_logprob:.2f}")
    if record.answer is not None:
        parts.append(f"answer {visible(record.answer)}{_mark(record.answer, gold)}")
    elif gold is not None:
        parts.append("no answer")
    return f"{_heading(f'sample {record.sample}')} [dim]·[/] {' [dim]·[/] '.join(parts)}"


def _vote_lines(vote: Vote) -> Iterator[str]:
    if vote.counts:
        width = max(len(str(count)) for count in vote.counts.values())
        longest = max(vote.counts.values())
        for answer, count in vote.counts.items():
            bar = "█" * max(1, round(30 * count / longest))
            name = visible(answer) + _mark(answer, vote.gold)
            yield f"{count:>{width}} [cyan]{bar}[/] {name}"
    silent = vote.samples - vote.cast
    if silent:
        yield f"[dim]{silent} of {vote.samples} samples have no answer[/]"


def _decision(stopped: Stopped, vote: Vote) -> str:
    deciding = stopped.problems[vote.problem_id, vote.prompt_hash]
    rule, number = stopped.rule.named, deciding.counted
    if not deciding.is_decided:
        return f"{rule}: not decided yet, {number} of {stopped.samples} samples read in their order"
    if number == stopped.samples:
        return f"{rule}: took all {number} samples"
    return f"{rule}: decided after {number} of {stopped.samples} samples"


def _mark(answer: str, gold: str | None) -> str:
    if gold is None:
        return ""
    return " [green]✓[/]" if is_right(answer, gold) else " [red]✗[/]"


def _heading(text: str) -> str:
    return f"[bold]{visible(text)}[/]"
