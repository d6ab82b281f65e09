"""What a rule that stopped a job saved, and what the vote over all samples would have been."""

from __future__ import annotations

from collections.abc import Sequence

from sharegen.common.stop_rule import StopRule
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.scoring.vote import Vote
from sharegen.results.stopping.stopped import Stopped


def stopping_rows(
    run: RunFile, drawn: Sequence[Record], votes: Sequence[Vote], stopped: Stopped
) -> list[tuple[str, str]]:
    """What the summary of a run says, a line each: what was drawn, saved, and is known of the rest.

    drawn: all samples on record; votes: over those that count.
    """
    asked = stopped.samples * len(stopped.problems)
    saved = asked - len(drawn)
    rows = [("rule", stopped.in_words())]
    if asked and drawn:
        tokens = round(sum(_tokens_saved(drawn, stopped)))
        cancelled, spent = run.stats.get("cancelled", 0), run.stats.get("cancelled_tokens", 0)
        line = f"[bold]{saved:,} of {asked:,} samples[/] ({saved / asked:.1%}), about"
        line += f" {max(0, tokens - spent):,} tokens"
        if cancelled:
            line += f"; {cancelled:,} of them had begun and were cancelled, after {spent:,} tokens"
        rows.append(("saved", line))
    if stopped.rule.votes:
        rows.append(("the vote over all", _full_vote(drawn, votes, stopped)))
    return rows


def _tokens_saved(drawn: Sequence[Record], stopped: Stopped) -> list[float]:
    """Tokens each problem saved: its samples not drawn, at the mean length of those drawn."""
    lengths: dict[tuple[str, str | None], list[int]] = {}
    for record in drawn:
        lengths.setdefault((record.problem_id, record.prompt_hash), []).append(record.num_tokens)
    return [
        (stopped.samples - len(mine)) * sum(mine) / len(mine)
        for mine in lengths.values()
        if len(mine) < stopped.samples
    ]


def _full_vote(drawn: Sequence[Record], votes: Sequence[Vote], stopped: Stopped) -> str:
    """Whether the winners are those of all samples, of the problems where that can be told.

    It can where so many samples are on record that the others could not change the winner.
    """
    if stopped.rule.is_exact:
        return "has the same winner, of every problem that is decided"
    full = Stopped(StopRule("decided"), stopped.samples)
    for record in drawn:
        full.note(record)
    known = same = 0
    for vote in votes:
        deciding = full.problems[vote.problem_id, vote.prompt_hash]
        if deciding.is_decided:
            known += 1
            same += deciding.standing.leader == vote.answer
    if not known:
        return "is not known of any problem: too few samples are on record"
    return f"is known of {known:,} of {len(votes):,} problems, and has the same winner in {same:,}"
