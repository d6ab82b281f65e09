"""docs/benchmarks.md, made of all measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.card.rows import ROWS
from benchmarks.measurement import Measurement, Peer
from benchmarks.tables.markdown import number, table
from benchmarks.tables.marks import Marks, differences, short_commit
from benchmarks.tables.popular import parts_table, popular_table
from benchmarks.tables.starts import starts_table
from benchmarks.tables.training import training_tables

_HEAD = """# Benchmarks

What sharegen was measured to do, beside other programs where these did the same work. Read it to
know what to expect of your card, and to see what a figure is made of. All of it is written by
`python -m benchmarks tables` from the files in `benchmarks/results/`. Each file has the command,
the versions and the numbers in full.

![sharegen beside the best other program](assets/speed.svg#only-light)
![sharegen beside the best other program](assets/speed-dark.svg#only-dark)

Measure your own card, and add its rows, with

```sh
python -m benchmarks card
```

It runs the commands of these tables, the most important first, writes a file for each row, and goes
on where it was cut off. `--list` shows the rows with their estimated seconds, `--budget` bounds the
time. Then `python -m benchmarks tables` writes this page anew. It all needs a clone.

- **Tokens per second** are those of a whole job after the start: prefill, decoding, sampling and
  scheduling. Weights and prompts are random, every sample has the same length. What is compiled in
  a job's first steps was compiled before, and of several runs of less than 12 seconds together the
  median counts.
- **FP8** are weights and KV cache: `--quantization fp8 --kv-cache-dtype fp8`.
- **Of the ceiling** is the share of what the same job draws with attention replaced by a copy,
  and what changes the states of a hybrid's mixers as well.
- **Results vary by about 5% between cards** of one name, so a comparison with another
  program counts only where both were measured in one sitting.
- **The commit** is the one whose code was measured. A letter behind a row says what tells it from
  the others of its table.
"""

_END = """## Where to go next

- [How it works](explanation/how-it-works.md): what the speed comes from.
- [Papers' experiments](reference/papers.md): how to run them on your machine.
- [Commands](reference/commands.md): every option of `sharegen bench`.
"""


def page(measured: Sequence[Measurement]) -> str:
    """The whole page, the most important rows first."""
    last = len(_IMPORTANCE)
    measured = sorted(measured, key=lambda row: (_IMPORTANCE.get(row.row, last), row.row))
    jobs = [row for row in measured if row.kind == "job"]
    parts = [
        _HEAD,
        *_section("One GPU", [row for row in jobs if row.card.count == 1], _job),
        f"## Ten popular shapes\n\n{_INTRODUCTIONS['Ten popular shapes']}\n",
        *(f"{made}\n" for made in (popular_table(measured), parts_table(measured)) if made),
        *_section("Several GPUs", [row for row in jobs if row.card.count > 1], _parallel),
        *_section("A whole command", _of(measured, "command"), _command),
        *_section("The first sample", _of(measured, "start"), None),
        *_section("A server", _of(measured, "serve"), None),
        *_section("Training", _of(measured, "training"), None),
        *_section("The deterministic mode", _of(measured, "same-bits"), None),
        *_section("CPU", _of(measured, "cpu"), _cpu),
        *_section("One layer of attention", _of(measured, "attention"), None),
        *_section("Sums over GPUs", _of(measured, "sums"), None),
        *_workloads(measured),
        *_peers(measured),
        *_commands(measured),
        _END,
    ]
    return "\n".join(parts)


def _of(measured: Sequence[Measurement], kind: str) -> list[Measurement]:
    return [row for row in measured if row.kind == kind]


_INTRODUCTIONS = {
    "Ten popular shapes": "The public configs with random weights, each on the workload gsm8k "
    "with up to 1,024 sequences, beside the same job with attention replaced by a copy, and a "
    "hybrid's mixers, too. The second table has the milliseconds of a step, by part: they are the "
    "GPU's, what runs side by side counts twice, and the host's are those in which the GPU waits. "
    "`python -m benchmarks card --popular` measures all of it.",
    "One GPU": "Whole jobs. The peer is the fastest program that did the same work, of "
    "[all](#peers).",
    "Several GPUs": "Workers are engines with a process each, ranks the GPUs that one engine's "
    "model is cut among. Tokens per second are those of all GPUs.",
    "A whole command": "From the shell's prompt to the shell's prompt, with tokenizer, stop "
    "strings and journal. The weights are random; end tokens among them end a sample after about "
    "130 tokens on average.",
    "The first sample": "From the shell's prompt to the first sample in the journal, of `sharegen "
    "run prompts` with 20 prompts x 8 samples of 64 tokens: once with an empty cache, then with "
    "what that start kept. The files of the model and of torch are in memory. "
    "[Starting](reference/starting.md) says what the parts are.",
    "A server": "`sharegen serve` is asked through the openai client, by a process of its own on "
    "the same machine. Each prompt is asked as many times as it has samples, one sample a request. "
    "Three kinds of tables: tokens per second, beside one call of `LLM.generate` that asks the "
    "same; milliseconds to the first token of an answer and for each further one, where each "
    "client asks one request after the other; milliseconds from a request's arrival to its end, "
    "divided by the tokens of the answer, where requests arrive at random times. The last one is "
    "ChunkAttention's load: prompts of 1,024 tokens and answers of 512, 32 at once. The paper's "
    "own A100 gave 14.07 a token at one request a second where prompts share, and 19.11 where not "
    "(Llama 2 of 7B, table 4 of [2402.15220](https://arxiv.org/abs/2402.15220)).",
    "Training": "GRPO by TRL over the module that sharegen samples from. Log-probabilities are "
    "compared in nats: those of the rollout with the trainer's, and the trainer's own with each "
    "other where the same module computes them in another way. "
    "[Training](guides/training.md#log-probabilities) says what they mean.",
    "The deterministic mode": "What `--deterministic` costs: the same job in the same process, in "
    "this mode and without it. [Determinism](explanation/determinism.md) says what it promises.",
    "CPU": "The bundled model in float32.",
    "One layer of attention": "Microseconds of one layer in a decoding step, bfloat16, by replays "
    "of a CUDA graph with a cold L2 cache. Lengths are tokens that all share, tokens of a problem, "
    "problems x samples, and own tokens of each. The floor is what the card's memory and matrix "
    "units allow.",
    "Sums over GPUs": "Microseconds in which GPUs of one machine add up bfloat16 numbers, with an "
    "addition behind it, in a CUDA graph.",
}

_HYPHEN = "\N{NON-BREAKING HYPHEN}"
_IMPORTANCE = {row.name: place for place, row in enumerate(ROWS)}

_Cells = Callable[[Measurement, Marks], dict[str, str]]


def _section(title: str, rows: Sequence[Measurement], cells: _Cells | None) -> Iterator[str]:
    if not rows:
        return
    yield f"## {title}\n\n{_INTRODUCTIONS[title]}\n"
    marks = Marks()
    if cells is None:
        for row in rows:
            yield from _lists(row)
        return
    said = differences(rows)
    lines = []
    for row, texts in zip(rows, said, strict=True):
        line = cells(row, marks) | {"card": row.card.label.replace("NVIDIA ", "")}
        line["measured"] = f"{row.date:%Y-%m-%d}".replace("-", _HYPHEN) + marks.of(*texts)
        line["commit"] = short_commit(row.commit) if row.commit else "not known"
        lines.append(line)
    cards = {line["card"] for line in lines}
    if len(cards) == 1:
        yield f"All on one {cards.pop()}.\n"
        for line in lines:
            line["card"] = ""  # which leaves the column out
    yield table(list(lines[0]), [list(line.values()) for line in lines]) + "\n"
    if legend := marks.legend():
        yield "\n".join(f"- {line}" for line in legend) + "\n"


def _job(row: Measurement, marks: Marks) -> dict[str, str]:
    numbers, sequences = row.numbers, row.engines.sequences
    ceiling = numbers.ceiling_tokens_per_second
    assert numbers.tokens_per_second is not None
    share = f"{numbers.tokens_per_second / ceiling:.0%}" if ceiling else ""
    return {
        "shape": row.shape or "",
        "workload": row.workload.name if row.workload else "",
        "precision": row.precision or "",
        "sequences": number(sequences),
        "tokens per second": number(numbers.tokens_per_second),
        "of the ceiling": share,
        "step, ms": number(numbers.step_ms, 1),
        **_beside(row, marks),
    }


def _beside(row: Measurement, marks: Marks) -> dict[str, str]:
    """The best peer, and how many times as fast sharegen is."""
    peer = row.best_peer
    if peer is None:
        return {"best peer": "", "times": ""}
    return {
        "best peer": f"{number(peer.tokens_per_second)} ({_program(peer)})"
        + marks.of(*_caveats(peer)),
        "times": number(row.times, 2),
    }


def _caveats(peer: Peer) -> Iterator[str]:
    if peer.sitting == "another":
        yield "The peer was measured in another sitting, on another card of this name."
    if peer.source:
        yield "The peer's number is published by others, and was not measured here."


def _program(peer: Peer) -> str:
    return f"{peer.name} {peer.version}" if peer.version else peer.name


def _parallel(row: Measurement, marks: Marks) -> dict[str, str]:
    one = row.numbers.one_engine_tokens_per_second
    assert row.numbers.tokens_per_second is not None
    return {
        "shape": f"{row.shape}, {row.precision}",  # in one column, or the table is too wide
        "workload": row.workload.name if row.workload else "",
        "workers x ranks": f"{row.engines.workers} x {row.engines.ranks}",
        "sequences": number(row.engines.sequences),
        "tokens per second": number(row.numbers.tokens_per_second),
        "one of them alone": number(one),
        "step, ms": number(row.numbers.step_ms, 1),
        **_beside(row, marks),
    }


def _command(row: Measurement, marks: Marks) -> dict[str, str]:
    numbers = row.numbers
    slots = numbers.slots_taken
    return {
        "benchmark": row.workload.name if row.workload else "",
        "shape": row.shape or "",
        "tokens per second": number(numbers.tokens_per_second),
        "slots taken": f"{slots:.0%}" if slots else "",
        "the command, s": number(numbers.command_seconds),
        "of it start, s": number(numbers.start_seconds),
        "of it end, s": number(numbers.end_seconds),
        **_beside(row, marks),
    }


def _cpu(row: Measurement, marks: Marks) -> dict[str, str]:
    assert row.workload is not None
    return {
        "job": f"{row.workload.problems} x {row.workload.samples} of {row.workload.output} tokens",
        "engines": str(row.engines.workers),
        "tokens per second": number(row.numbers.tokens_per_second),
        **_beside(row, marks),
    }


def _prices(row: Measurement) -> str:
    """What the deterministic mode costs, and where it was drawn, that with any tree."""

    def share(rate: float | None, of: float | None) -> str:
        return f"{rate / of:.3f}" if rate and of else ""

    return table(
        ("shape", "workload", "sequences", "deterministic", "plain", "share", "any tree",
         "share of deterministic", "other bits"),
        [
            (row.shape or "", each.workload, number(each.sequences), number(each.deterministic),
             number(each.plain), share(each.deterministic, each.plain),
             number(each.any_tree), share(each.any_tree, each.deterministic),
             "" if each.differing is None else f"{each.differing:,} of {each.samples:,}")
            for each in row.numbers.prices or ()
        ],
    )  # fmt: skip


def _lists(row: Measurement) -> Iterator[str]:
    """A measurement that is a table of its own."""
    commit = f"`{short_commit(row.commit)}`" if row.commit else "not known"
    busy = "Others used the machine. " if row.busy else ""
    said = f"{row.card.label}, {row.date:%Y-%m-%d}, commit {commit}. {busy}{row.note or ''}"
    yield said.rstrip() + "\n"
    yield from _serve(row)
    if row.numbers.training is not None:
        yield from training_tables(row, row.numbers.training)
    if row.numbers.starts:
        yield starts_table(row.numbers.starts) + "\n"
    if row.numbers.prices:
        yield _prices(row) + "\n"
    if row.numbers.layers:
        yield table(
            ("heads", "lengths", "sharegen", "FlashInfer", "torch", "floor"),
            [
                (each.heads, each.lengths, number(each.sharegen), number(each.flashinfer),
                 number(each.torch), number(each.floor))
                for each in row.numbers.layers
            ],
        ) + "\n"  # fmt: skip
    if row.numbers.sums:
        yield table(
            ("bytes", "NCCL", "two-shot with a copy", "two-shot", "one-shot"),
            [
                (number(each.bytes), number(each.nccl, 1), number(each.two_shot_with_copy, 1),
                 number(each.two_shot, 1), number(each.one_shot, 1))
                for each in row.numbers.sums
            ],
        ) + "\n"  # fmt: skip


def _serve(row: Measurement) -> Iterator[str]:
    """What a server was measured to do."""
    numbers, call = row.numbers, row.numbers.call_tokens_per_second
    if call is not None and numbers.tokens_per_second is not None:
        yield table(
            ("shape", "asked", "tokens per second", "one call's", "of it"),
            [(row.shape or "", row.workload.name if row.workload else "",
              number(numbers.tokens_per_second), number(call),
              f"{numbers.tokens_per_second / call:.0%}")],
        ) + "\n"  # fmt: skip
    if numbers.latencies:
        yield table(
            ("clients", "first token", "99 of 100", "each further one", "99 of 100"),
            [
                (number(each.clients), number(each.first_token.p50, 1),
                 number(each.first_token.p99, 1), number(each.token.p50, 1),
                 number(each.token.p99, 1))
                for each in numbers.latencies
            ],
        ) + "\n"  # fmt: skip
    if numbers.arrivals:
        yield table(
            ("a second", "prompts", "mean", "median", "99 of 100"),
            [
                (number(each.rate, 1), "shared" if each.shared else "not shared",
                 number(each.mean, 1), number(each.normalised.p50, 1),
                 number(each.normalised.p99, 1))
                for each in numbers.arrivals
            ],
        ) + "\n"  # fmt: skip


def _workloads(measured: Sequence[Measurement]) -> Iterator[str]:
    found = {row.workload.name: row.workload for row in measured if row.workload}
    rows = [
        (each.name, number(each.prefix), number(each.problem), number(each.problems),
         number(each.samples), number(each.output))
        for each in found.values() if each.prefix is not None
    ]  # fmt: skip
    header = ("workload", "shared", "problem", "problems", "samples each", "output")
    yield "## Workloads\n\nTokens, but for the two columns of problems and samples.\n"
    yield table(header, sorted(rows)) + "\n"


def _peers(measured: Sequence[Measurement]) -> Iterator[str]:
    rows = []
    for row in measured:
        for peer in row.peers:
            where = f"[published]({peer.source})" if peer.source else f"{peer.sitting} sitting"
            said = f"{where}. {peer.note}" if peer.note else where
            pace = number(peer.tokens_per_second)
            rows.append((row.row, _program(peer), peer.mode, pace, said))
    if rows:
        yield "## Peers\n\nEvery number of another program, and where it comes from.\n"
        yield table(("row", "program", "mode", "tokens per second", "source"), rows) + "\n"


def _commands(measured: Sequence[Measurement]) -> Iterator[str]:
    yield "## Commands\n\nWhat was run for each row. What a source does not tell is said.\n"
    for row in measured:
        versions = [f"{name} {value}" for name, value in row.versions if value]
        lines = [f"**{row.name}**\n"]
        if row.command:
            lines.append(f"```sh\n{row.command}\n```\n")
        lines.append(f"{row.card.label}; {', '.join(versions)}.")
        if row.note:
            lines.append(row.note)
        reasons: dict[str, list[str]] = {}
        for field, reason in row.unknown.items():
            reasons.setdefault(reason, []).append(field)
        lines += [f"Not known: {', '.join(fields)} ({why})." for why, fields in reasons.items()]
        yield "\n".join(lines) + "\n"
