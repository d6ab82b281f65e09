"""What a finished run says about itself, on stdout, in as many lines as a terminal has.

An example comes first, where there is room for one, and what was measured last.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from sharegen.common.printable import visible
from sharegen.results.answers.equality import equality_used
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.scoring.vote import Vote, tally
from sharegen.results.screen.accuracy import accuracy, rescued
from sharegen.results.screen.kv_use import kv_rows, mib
from sharegen.results.screen.rescue import LEAST, rescue
from sharegen.results.screen.start import start_in_words
from sharegen.results.stopping.savings import stopping_rows
from sharegen.results.stopping.stopped import Stopped, counted

_LINES = 23  # of a terminal's 24, but for the one with the prompt


def print_summary(
    path: Path,
    found: Iterable[Record],
    run: RunFile,
    samples: int,
    questions: Mapping[str, str],
    stopped: Stopped | None = None,
) -> None:
    """A problem that the vote rescued, counts, speed, what sharing saved, accuracy, what next.

    found: what is on record, in the journal at `path` and elsewhere. samples: the first so many of
    each problem count. questions: by problem id; these problems count. stopped: the rule of the
    job: of each problem the samples vote that decided it.
    """
    records = [
        record
        for record in found
        if record.problem_id in questions or not record.is_sample
        if record.sample is None or record.sample < samples
    ]
    drawn = [record for record in records if record.is_sample]
    votes = tally(counted(drawn, stopped))
    console = Console(highlight=False)
    numbers = _numbers(run, records, votes, stopped)
    best = rescued(votes) if _votes(run) else None
    some = best.problem_id if best else drawn[0].problem_id
    file = shlex.quote(str(path))
    commands = [f"show {file} --problem {shlex.quote(some)}"]
    if _votes(run) and any(vote.counts for vote in votes):
        commands.insert(0, f"vote {file} --at {max(1, samples // 4)}")
    if (run.settings.get("dataset") or {}).get("rows"):
        commands.insert(0, f"score {file} --execute")
    after = _next(path, commands)
    if best is not None:
        # With an empty line behind it, and one behind the numbers.
        below: list[RenderableType] = [numbers, *after]
        room = _LINES - 2 - sum(len(console.render_lines(each)) for each in below)
        if room >= LEAST:
            for line in rescue(console, best, questions[best.problem_id], room):
                console.print(line)
            console.print()
    console.print(numbers)
    console.print()
    for line in after:
        console.print(line, soft_wrap=True)


def _numbers(
    run: RunFile, records: list[Record], votes: list[Vote], stopped: Stopped | None
) -> Table:
    drawn = [record for record in records if record.is_sample]
    bad = _bad_rows(records)
    tokens = sum(record.num_tokens for record in drawn)
    reasons = Counter(record.finish_reason for record in drawn)
    ends = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
    table = Table.grid(padding=(0, 2))
    rows = f" [red]({_bad(bad)})[/]" if bad else ""
    table.add_row("[dim]problems[/]", f"{len(votes):,}{rows}")
    table.add_row("[dim]completions[/]", f"{len(drawn):,}, {tokens:,} tokens ({visible(ends)})")
    failed = [record for record in drawn if record.error is not None]
    if failed:
        why = f"problem {failed[0].problem_id}, sample {failed[0].sample}: {failed[0].error}"
        table.add_row("[dim]failed[/]", f"[red]{len(failed):,}[/], {visible(why)}")
    seconds = run.timings.get("sampling_seconds")
    stats = run.stats
    if seconds and stats.get("generated_tokens"):
        pace = stats["generated_tokens"] / seconds
        table.add_row("[dim]speed[/]", f"[bold]{pace:,.0f} tokens/s[/], {seconds:,.1f} s")
    if said := start_in_words(run):
        table.add_row("[dim]start[/]", said)
    if stats.get("decode_steps"):
        table.add_row("[dim]decoding[/]", _decoding(stats))
    if seconds and stats.get("device") == "cuda" and "waited_seconds" in stats:
        share = stats["waited_seconds"] / max(1, stats.get("engines", 1)) / seconds
        table.add_row("[dim]host[/]", f"waited for the GPU for {share:.0%} of the time")
    if stats.get("copies"):
        copies = f"{stats['copies']:,} completions repeat another of their problem"
        table.add_row("[dim]greedy[/]", f"{copies}: greedy samples are the same, and computed once")
    if stats.get("slow_steps"):
        why = visible(str(stats.get("slow_attention") or "see the warning of that run"))
        slow = f"{stats['slow_steps']:,} steps in plain torch, as no kernel serves: {why}"
        table.add_row("[dim]slow attention[/]", slow)
    asked, computed = stats.get("prompt_tokens_asked"), stats.get("prompt_tokens_computed")
    if asked and computed:
        times = f"{asked / computed:,.1f}x fewer"
        if twice := _by_several_engines(stats):
            times += f"; {twice}"
        if found := stats.get("prompt_tokens_found"):
            times += f"; {found:,} found from earlier requests"
        if again := stats.get("prompt_tokens_recomputed"):
            times += f"; {again:,} of them again, as the KV cache was too small"
        if again := stats.get("prompt_tokens_resumed"):
            times += f"; {again:,} again, as the job was continued"
        table.add_row("[dim]prompt tokens[/]",
                      f"{asked:,} asked, [bold]{computed:,} computed[/] ({times})")  # fmt: skip
    plan = stats.get("plan")
    if plan:
        apart, shared = plan["kv_unshared_bytes"], plan["kv_shared_bytes"]
        table.add_row("[dim]KV of the prompts[/]",
                      f"{mib(apart)} unshared, [bold]{mib(shared)} shared[/]")  # fmt: skip
        if state := plan.get("state_bytes"):
            apart, shared = plan["samples"] * state, plan["nodes"] * state
            table.add_row("[dim]state of the prompts[/]",
                          f"{mib(apart)} unshared, [bold]{mib(shared)} shared[/]")  # fmt: skip
    for name, value in kv_rows(stats):
        table.add_row(f"[dim]{name}[/]", value)
    if stats.get("mixers"):
        table.add_row("[dim]mixers[/]", visible(str(stats["mixers"])))
    if stats.get("preemptions"):
        swaps, replayed = stats.get("swaps", 0), stats.get("tokens_replayed", 0)
        table.add_row("[dim]preemptions[/]", f"{stats['preemptions']:,}, {swaps:,} swapped to host "
                      f"memory; {replayed:,} tokens replayed")  # fmt: skip
    if stats.get("shrinks"):
        table.add_row("[dim]out of memory[/]",
                      f"{stats['shrinks']:,} times: it went on with smaller batches")  # fmt: skip
    if stats.get("verified"):
        has_fp8 = run.configuration.get("kv_cache_dtype") == "fp8"
        table.add_row("[dim]verified[/]", _verified(stats["verified"], has_fp8))
    if run.configuration.get("deterministic"):
        table.add_row("[dim]mode[/]", "deterministic: each sample's bits, whatever ran beside it")
    if stats.get("drawn_again"):
        table.add_row("[dim]drawn again[/]", _drawn_again(stats["drawn_again"]))
    counted, known = stats.get("samples_recorded"), run.counts.get("samples")
    if counted is not None and known is not None and counted < known:
        note = "a run that was killed left no counts"
        table.add_row("", f"[dim]speed and prompt tokens: of {counted:,} of {known:,} completions "
                          f"on record, {note}[/]")  # fmt: skip
    elif known is not None and len(drawn) < known:
        table.add_row("", f"[dim]from speed to here: of all {known:,} completions on record, more "
                          f"than are asked now[/]")  # fmt: skip
    rows_of_rule = [] if stopped is None else stopping_rows(run, drawn, votes, stopped)
    rows_of_answers = [*_answer_rows(run, drawn, votes), *_accuracy_rows(run, votes, stopped)]
    for name, value in (*rows_of_rule, *rows_of_answers):
        table.add_row(f"[dim]{name}[/]", value)
    used = equality_used(pair for vote in votes for pair in vote.comparisons)
    if used is not None:
        table.add_row("[dim]right and wrong[/]", visible(used))
    return table


def _decoding(stats: Mapping[str, Any]) -> str:
    """How full the batch was, and in how many steps shared text was read once for all."""
    steps = stats["decode_steps"]
    text = f"{steps:,} steps"
    share = slots_taken(stats)
    if share is not None:
        text += f", {share:.0%} of {stats['slots']:,} slots taken"
    by_levels = stats.get("steps_by_levels", {})
    if not by_levels:
        return text
    apart = by_levels.get("", 0)
    if not apart:
        return f"{text}; shared text read once"
    if apart == steps:
        return f"{text}; each sample read all of its text"
    return f"{text}; shared text read once in {steps - apart:,} of them"


def slots_taken(stats: Mapping[str, Any]) -> float | None:
    """The share of the batch's places that had a sample, over all decoding steps."""
    if not stats.get("slots") or not stats["decode_steps"]:
        return None
    # The first token of a sample is drawn from its prompt's logits.
    first = stats["completions"] - stats.get("copies", 0) + stats.get("cancelled", 0)
    return (stats["generated_tokens"] - first) / stats["decode_steps"] / stats["slots"]


def _by_several_engines(stats: Mapping[str, Any]) -> str | None:
    """What several engines computed each for itself, which the plan counts once."""
    planned, engines = (stats.get("plan") or {}).get("computed"), stats.get("engines", 1)
    if planned is None or engines < 2:
        return None
    more = stats["prompt_tokens_computed"] - stats.get("prompt_tokens_recomputed", 0) - planned
    return f"{more:,} of them by several of {engines:,} engines" if more > 0 else None


def _verified(found: Mapping[str, Any], has_fp8: bool) -> str:
    """How near the model's own attention the steps were that a run with --verify looked at.

    has_fp8: whether the KV cache was FP8.
    """
    skipped = found["skipped"]
    without = f"{skipped:,} steps need more memory than there is" if skipped else ""
    if not found["steps"]:
        return f"nothing: {without}"
    text = (
        f"{found['steps']:,} steps: log-probabilities differ from the model's own attention by at "
        f"most [bold]{found['largest']:.2g}[/] (mean {found['mean']:.2g})"
    )
    among = found["among_back_ends"]
    if among is not None:
        text += f"; its own back ends differ among themselves by {among:.2g}"
    else:
        text += f"; there is no yardstick: {visible(str(found['no_yardstick']))}"
    far = found.get("from_checkpoint")
    if far is not None:
        text += f"; from those of the weights as the checkpoint has them by {_distance(far)}"
    elif has_fp8:
        text += f"; that is {_distance(found)}"
    return text + (f"; {without}" if without else "")


def _drawn_again(found: Mapping[str, Any]) -> str:
    """How many samples came out as they were, of those that --check-determinism drew again."""
    samples, same = found["samples"], found["same"]
    if same == samples:
        return f"{samples:,} samples, in another batch: [bold]all the same, byte for byte[/]"
    return (
        f"{samples:,} samples, in another batch: {same:,} the same, byte for byte "
        f"(the first that is not: {visible(str(found['first']))})"
    )


def _distance(far: Mapping[str, Any]) -> str:
    """How far the log-probabilities of some steps are from others, where that is no rounding."""
    return (
        f"{far['mean']:.2g} on average, {far['p99']:.2g} at the 99th percentile and "
        f"{far['largest']:.2g} at most, and the likeliest token is another one in "
        f"{far['changed']:.1%} of {far['steps']:,} steps"
    )


def _bad_rows(records: list[Record]) -> dict[str, str | None]:
    """Problems that could not be asked, and have not been since, with the reason."""
    bad: dict[str, str | None] = {}
    for record in records:
        if record.is_sample:
            bad.pop(record.problem_id, None)
        else:
            bad[record.problem_id] = record.error
    return bad


def _bad(rows: Mapping[str, str | None]) -> str:
    """How many rows were left out, and why the first one was."""
    problem, error = next(iter(rows.items()))
    why = visible(f"problem {problem}: {error}")
    if len(rows) == 1:
        return f"1 bad row: {why}"
    return f"{len(rows):,} bad rows, the first: {why}"


def _answer_rows(run: RunFile, drawn: list[Record], votes: list[Vote]) -> list[tuple[str, str]]:
    """How many answers could be read, where the job looks for any, and what to do about none."""
    wanted = run.settings.get("answer")
    if not wanted or not drawn:
        return []
    read = sum(record.answer is not None for record in drawn)
    rows = [("answers", f"read in {read:,} of {len(drawn):,} completions")]
    if not read:
        rows.append(("", "[red]no answer could be read: see answer.extract, answer.patterns (which "
                         "cost no samples to change) and --max-tokens[/]"))  # fmt: skip
    if wanted.get("gold"):
        known = sum(vote.gold is not None for vote in votes)
        rows.append(("gold answers", f"known of {known:,} of {len(votes):,} problems"))
        if not known:
            rows.append(("", "[red]no gold answer is known: see answer.gold[/]"))
    return rows


def _votes(run: RunFile) -> bool:
    """Whether the recipe asks for the majority of a problem's samples (`vote`)."""
    return run.settings.get("vote") is not False


def _accuracy_rows(
    run: RunFile, votes: list[Vote], stopped: Stopped | None
) -> list[tuple[str, str]]:
    """What one sample gets right, and the vote where there is more than one sample."""
    result = accuracy(votes, stopped)
    if result is None:
        return []
    measure = (run.settings.get("answer") or {}).get("measure", "accuracy")
    if result.samples == result.problems or not _votes(run):
        return [(visible(measure), f"[bold]{result.sample:.1%}[/]")]
    gain = f"{100 * (result.vote - result.sample):+.1f} points"
    if stopped is not None:
        gain += f"; {stopped.rule.named}"
    return [
        (f"{visible(measure)}, one sample", f"{result.sample:.1%}"),
        (f"{visible(measure)}, the vote", f"[bold]{result.vote:.1%}[/] ({gain})"),
    ]


def _next(path: Path, commands: Sequence[str]) -> list[str]:
    """Where the journal is, and what can be done with it."""
    names = ["next  ", *["      "] * len(commands)]
    lines = zip(names, commands, strict=False)
    return [
        f"[dim]journal[/]  {visible(str(path))}",
        *(f"[dim]{name}[/]   sharegen {visible(command)}" for name, command in lines),
    ]
