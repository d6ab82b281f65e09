"""`sharegen plan`: what a job would share, before anything is sampled."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.tree import Tree

from sharegen.cli.json_output import JsonOption, print_json
from sharegen.cli.options import JobOptions
from sharegen.cli.parameters import parse_size, with_options
from sharegen.cli.recipes import RecipeArgument
from sharegen.cli.show_config import print_configuration
from sharegen.cli.telling import say
from sharegen.common.printable import printable, visible
from sharegen.errors import UsageError

if TYPE_CHECKING:
    from sharegen.job.dry_run import CutPlan, PromptPreview
    from sharegen.job.estimate import TimeEstimate
    from sharegen.job.sharing_plan import Branch, LevelMode, SharingPlan


@with_options
def plan(
    recipe: RecipeArgument,
    options: JobOptions,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            help="Show how `run --shard I/N` would cut the job into N.",
            min=1,
            metavar="N",
            rich_help_panel="Output",
        ),
    ] = None,
    show_prompt: Annotated[
        str | None,
        typer.Option(
            "--show-prompt",
            help="Print one whole prompt as it will be asked, and nothing else: that of the first "
            "problem, or of ID.",
            metavar="[ID]",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    gpu_memory: Annotated[
        int | None,
        typer.Option(
            "--gpu-memory",
            help="Plan for a GPU of so much memory, such as 80GiB, which need not be here.",
            parser=parse_size,
            metavar="SIZE",
            show_default=False,
            rich_help_panel="Output",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a recipe's prompts share and what that saves. Samples nothing.

    Reads the dataset, the tokenizer and the model's config; no weights. Says how many gold
    answers are known, and of which rows they cannot be read. With --shards it shows the parts of
    the job instead: the work of one is its prompt tokens, each computed once, and the tokens of
    its samples at their full length. `sharegen plan RECIPE --help` shows the recipe's own defaults.

    \b
    Examples:
      sharegen plan self-consistency
      sharegen plan self-consistency --dataset gsm8k --model ./model -n 40
      sharegen plan ./mine.yaml --show-prompt
      sharegen plan self-consistency --model ./model --gpu-memory 80GiB
      sharegen plan self-consistency --shards 8
      sharegen plan self-consistency --json | jq .computed
    """
    from sharegen.job.dry_run import plan_cut, plan_job, preview_prompt
    from sharegen.job.estimate import estimate
    from sharegen.workload.configuration import resolve

    part = options.part
    if shards is not None and part is not None:
        raise UsageError("--shards shows all parts and --shard one of them: leave out one")
    if gpu_memory is not None and shards is not None:
        raise UsageError("--shards cuts a job without a machine: leave out --gpu-memory")
    job = resolve(recipe, options.dataset, options.flags())
    if options.show_config:
        print_configuration(job)
        return
    if show_prompt is not None:
        if as_json or shards is not None:
            raise UsageError("--show-prompt prints a text: leave out --json and --shards")
        _print_prompt(preview_prompt(job, show_prompt or None))
        return
    if shards is not None:
        made_cut = plan_cut(job, shards)
        if as_json:
            print_json(made_cut.to_json())
            return
        Console(highlight=False).print(Group(cut_table(made_cut), "", cut_summary(made_cut)))
        return
    made = plan_job(job, part, gpu_memory)
    time = estimate(job, made)
    if as_json:
        print_json(made.to_json() | {"seconds": None if time is None else round(time.seconds, 1)})
        return
    Console(highlight=False).print(Group(sharing_tree(made), "", plan_table(made, time)))


def _print_prompt(asked: PromptPreview) -> None:
    """The text on stdout, as it is where that is no terminal; what it is on stderr."""
    said = f"problem {asked.problem}: {asked.tokens:,} prompt tokens"
    if asked.begins_with:
        said += f", of which {asked.begins_with} stands before the text"
    said += "" if asked.gold is None else f"; gold answer: {asked.gold}"
    say(said)
    sys.stdout.write((printable(asked.text) if sys.stdout.isatty() else asked.text) + "\n")


def plan_table(plan: SharingPlan, time: TimeEstimate | None) -> Table:
    """The numbers of a plan, a line each. time: how long it will take, where that is known."""
    table = Table.grid(padding=(0, 2))
    per_wave = f"{plan.fit:,} sequences at once"
    if plan.workers > 1:
        per_wave += f" in each of {plan.workers:,} workers"
    rows = [
        _samples_row(plan),
        *_gold_rows(plan),
        ("prompt tokens", f"{plan.asked:,} as asked, {plan.computed:,} computed"
         f" ({_times(plan.asked, plan.computed)} fewer)"),
        ("KV of the prompts", f"{size(plan.kv_unshared_bytes)} stored for every sample, "
         f"{size(plan.kv_shared_bytes)} shared"),
        ("KV of one completion", f"up to {size(plan.kv_suffix_bytes)}"),
        ("KV cache", f"{size(plan.kv_cache_bytes)}: {per_wave}, "
         f"{plan.waves:,} wave{'s' if plan.waves != 1 else ''}"),
    ]  # fmt: skip
    if plan.latent_bytes:
        said = f"{size(plan.latent_bytes)} as a latent, where one sample reads it, "
        rows.insert(-1, ("KV of a token", f"{said}{size(plan.spread_bytes)} where several do"))
    if plan.state_bytes:
        rows[-1:-1] = _state_rows(plan)
    if plan.duplicated:
        at = [name for name, _ in rows].index("prompt tokens") + 1
        rows.insert(at, ("", f"{plan.duplicated:,} of these are shared in branches shorter than a "
                            "block, and duplicated"))  # fmt: skip
    if plan.weights_bytes and plan.ranks == 1:
        rows.insert(-1, ("weights", size(plan.weights_bytes) + _of_gpu(plan)))
    if plan.gpu_bytes and plan.weights_bytes >= plan.gpu_bytes:
        rows[-1] = ("KV cache", "[red]none: the weights do not fit (--quantization fp8, "
                                "--tensor-parallel-size)[/]")  # fmt: skip
    elif not plan.fit:
        rows[-1] = ("KV cache", f"[red]{size(plan.kv_cache_bytes)}: too small for one sequence "
                                "(--kv-cache-memory, --max-tokens)[/]")  # fmt: skip
    if plan.workers > 1:
        work = plan.computed + plan.copied + plan.samples * plan.max_tokens
        rows.append((f"{plan.workers:,} workers", f"about {plan.copied:,} prompt tokens computed "
                     f"again by other workers: {plan.copied / work:.2%} of all work"))  # fmt: skip
    if plan.ranks > 1:
        rows.append((f"{plan.ranks:,} ranks", f"{size(plan.weights_bytes)} of weights on each, and "
                     "KV as above"))  # fmt: skip
    if plan.rule is not None:
        rows += _rule_rows(plan)
    rows += [(f"level {mode.level} of the tree", _mode(mode)) for mode in plan.readings]
    rows.append(("time", _time(plan, time)))
    for name, value in rows:
        table.add_row(f"[dim]{name}[/]", value)
    return table


def _of_gpu(plan: SharingPlan) -> str:
    """The memory of the GPU that was asked for."""
    return f" of the GPU's {size(plan.gpu_bytes)}" if plan.gpu_bytes else ""


def _time(plan: SharingPlan, found: TimeEstimate | None) -> str:
    """How long sampling takes, and where that is from."""
    if found is None and plan.gpu_bytes:
        return "not known: runs on record are of this machine, and not of that GPU"
    if found is None:
        return "not known: no run of this model on this machine is on record in runs/"
    how = f"at the {found.pace:,.0f} tokens/s of {visible(str(found.run_file))}"
    if found.tokens is None:
        return f"at most {_duration(found.seconds)}, {how}, with samples at their full length"
    rule = "" if plan.rule is None else "at most "
    return f"{rule}about {_duration(found.seconds)}, {how}, {found.tokens:,.0f} tokens a sample"


def _duration(seconds: float) -> str:
    """A time as people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 6000 else f"{seconds / 3600:,.1f} h"


def _gold_rows(plan: SharingPlan) -> list[tuple[str, str]]:
    """How many problems have a known gold answer, where the recipe looks for one."""
    if plan.golds is None:
        return []
    return [("gold answers", f"known of {plan.golds:,} of {plan.problems:,} problems")]


def _samples_row(plan: SharingPlan) -> tuple[str, str]:
    drawn = f"{plan.samples:,} completions of up to {plan.max_tokens:,} tokens"
    if plan.uneven:
        return "problems", f"{plan.problems:,}, with {drawn}, as many as each asks for"
    each = plan.samples // max(1, plan.problems)
    return "problems x samples", f"{plan.problems:,} x {each:,} = {drawn}"


def _state_rows(plan: SharingPlan) -> list[tuple[str, str]]:
    """What a model's mixers keep of prompts and samples."""
    rows = [
        ("state of the prompts", f"{size(plan.samples * plan.state_bytes)} stored for every "
         f"sample, {size(plan.nodes * plan.state_bytes)} shared"),
        ("state of one completion", f"{size(plan.state_bytes)}, one of {plan.state_slots:,} slots "
         f"in {size(plan.state_slots * plan.state_bytes)} beside the KV cache"),
    ]  # fmt: skip
    if plan.whole:
        rows.append(("", f"too few slots for {plan.whole:,} problems, whose prompts are computed "
                         "whole and share nothing (--kv-cache-memory)"))  # fmt: skip
    return rows


def _rule_rows(plan: SharingPlan) -> list[tuple[str, str]]:
    """What a rule leaves of a job, as far as that is known before anything is drawn."""
    least = plan.wave * plan.problems
    kept = "prompts stay in the KV cache between waves"
    if not plan.resident:
        kept = "prompts may leave the KV cache between waves, and are computed again then"
    return [
        (f"stopped when {plan.rule}", f"{least:,} to {plan.samples:,} completions expected, as the "
         f"samples agree: up to {plan.samples - least:,} saved"),
        ("", f"a problem starts with a wave of {plan.wave:,}, then with what it still takes; "
         f"{kept}"),
    ]  # fmt: skip


def cut_table(plan: CutPlan) -> Table:
    """The parts of a job, a line each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("shard", "problems", "samples", "prompt tokens", "KV of the prompts", "work"):
        table.add_column(name, justify="right")
    parts = plan.cut.parts
    for number, part in enumerate(parts, start=1):
        count, tokens = len(part.problems), part.prompt_tokens
        samples = plan.samples[number - 1]
        kv = size(tokens * plan.kv_bytes_per_token)
        cells = (count, samples, tokens, kv, part.work)
        numbers = (cell if isinstance(cell, str) else f"{cell:,}" for cell in cells)
        table.add_row(f"{number}/{len(parts)}", *numbers)
    return table


def cut_summary(plan: CutPlan) -> Table:
    """How even the parts are, and what sharing is lost to them."""
    cut = plan.cut
    work = sum(part.work for part in cut.parts)
    rows = [
        ("largest part", f"{cut.imbalance:.3f} times the mean"),
        ("sharing lost", f"{cut.copied:,} of {cut.prompt_tokens + cut.copied:,} prompt tokens, "
         f"{cut.copied / work:.1%} of all work"),
    ]  # fmt: skip
    empty = sum(len(part.problems) == 0 for part in cut.parts)
    if empty:
        rows.append(("without a problem", _count(empty, "part")))
    table = Table.grid(padding=(0, 2))
    for name, value in rows:
        table.add_row(f"[dim]{name}[/]", value)
    return table


def _mode(mode: LevelMode) -> str:
    """How a decoding step reads a level, and why."""
    nodes = _count(mode.nodes, "node")
    why = f"{mode.once:,.1f} µs a layer against {mode.each:,.1f} µs"
    if mode.apart == 0:
        return f"{nodes}, read once for all sequences below ({why} if each read them)"
    why = f"{mode.each:,.1f} µs a layer against {mode.once:,.1f} µs"
    if mode.apart == mode.nodes:
        return f"{nodes}, read by each sequence with its own tokens ({why} if read once)"
    return f"{nodes}, of which {mode.apart:,} read by each sequence with its own tokens ({why})"


def sharing_tree(plan: SharingPlan) -> Tree:
    """The tree of what prompts share: tokens of each node, the middle elided."""
    tree = Tree(
        f"[bold]{_count(plan.problems, 'problem')}, {_count(plan.samples, 'sample')}[/]: "
        f"{plan.asked:,} prompt tokens as asked, [bold]{plan.computed:,} computed[/] "
        f"({_times(plan.asked, plan.computed)} fewer){_by_order(plan)}"
    )
    for branch in plan.branches:
        _grow(tree, branch, plan)
    return tree


def _by_order(plan: SharingPlan) -> str:
    """What `--reorder` saves."""
    if plan.saved_by_order is None:
        return ""
    if plan.saved_by_order == 0:
        return "; no order shares more than the given one"
    given = plan.computed + plan.saved_by_order
    return f"; in the given order {given:,} ({_times(given, plan.computed)} more)"


def _grow(tree: Tree, branch: Branch, plan: SharingPlan) -> None:
    tokens = _count(branch.tokens, "token")
    if branch.repeat > 1:
        drawn = _count(branch.samples, "sample")
        if not plan.uneven:
            each = branch.samples // branch.problems if branch.problems else 0
            drawn = f"{_count(each, 'sample')} each"
        what = f"{branch.problems:,} more problems"
        tree.add(f"[dim]… {what} · {tokens} ─ {drawn}[/]")
        return
    if branch.problem is None:
        by_all = branch.problems == plan.problems
        name = "[bold cyan]shared by all[/]" if by_all else "[cyan]shared[/]"
        passing = f"{branch.problems:,} problems, {branch.samples:,} samples"
        grown = tree.add(f"{name} · {tokens} · {passing}")
    else:
        own = branch.samples - sum(child.samples for child in branch.children)
        name = f"problem {visible(branch.problem)}"
        grown = tree.add(f"{name} · {tokens} ─ [green]{_count(own, 'sample')}[/]")
    for child in branch.children:
        _grow(grown, child, plan)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("s" if number != 1 else "")


def size(number: int) -> str:
    """Write bytes for people: 1.5 GiB."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _times(before: int, after: int) -> str:
    return f"{before / after:.1f}x" if after else "1.0x"
