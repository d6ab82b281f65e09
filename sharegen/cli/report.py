"""`sharegen report`: pictures and a page of finished journals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharegen.cli.answer_options import RecipeOption, SetOption, answers_by
from sharegen.cli.json_output import JsonOption, print_json
from sharegen.cli.parameters import parse_path
from sharegen.cli.telling import say
from sharegen.common.files import make_folders, replace_file
from sharegen.common.printable import printable
from sharegen.errors import DataError, SharegenError, UsageError

if TYPE_CHECKING:
    from sharegen.results.report.outcomes import Run
    from sharegen.workload.problem import Problem


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Journals (JSONL) that `sharegen run` wrote; several are compared.",
            parser=parse_path,
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="PAGE",
            help="Write one self-contained page: pictures, configuration, problems.",
            parser=parse_path,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PLACE",
            help="Write the pictures: all into one .svg, or each into a folder.",
            parser=parse_path,
        ),
    ] = None,
    pooled: Annotated[
        bool,
        typer.Option(
            "--pool",
            help="Take samples of one job together, also of several seeds.",
        ),
    ] = False,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw pass@k and maj@k against the samples, and what else a run is judged by.

    The curves are printed here. A journal brings those of its shards along. Samples are judged by
    their scores (`sharegen score`) where the journal has any, else by comparing answer and gold.
    Pictures: the curves, solved problems by difficulty, vote margins, completion lengths, tokens
    per second, what sharing saved; they are SVG, which browsers show and editors take.

    \b
    Examples:
      sharegen report runs/gsm8k.jsonl
      sharegen report runs/gsm8k.jsonl --html report.html
      sharegen report small.jsonl large.jsonl --output pictures/
    """
    from sharegen.results.report import figures, page, terminal
    from sharegen.results.report.measure import measure_all
    from sharegen.results.report.objects import as_object
    from sharegen.results.report.outcomes import read_runs
    from sharegen.results.report.pictures import pictures

    _check_outputs(html, output)
    read = read_runs(files, pooled, answers_by(recipe, assignments).of)
    problems = [_problems(run, html is not None, output is not None) for run in read]
    runs = measure_all(
        [
            run.with_difficulties(_difficulties(of_run))
            for run, of_run in zip(read, problems, strict=True)
        ]
    )
    for run in runs:
        for note in run.notes:
            say(f"{run.run.path}: {note}")
    curve = terminal.chart(runs)
    if as_json:
        print_json(as_object(runs))
    elif curve:
        print(printable(curve))
    else:
        say("no sample has a gold answer or a score to be judged by: there are no curves")
    drawn = pictures(runs)
    if output is not None:
        for path in figures.save(drawn, output):
            say(f"written: {path}")
    if html is not None:
        prompts, shared = _prompts(problems)
        try:
            make_folders(html.parent)
            replace_file(html, page.render(runs, drawn, prompts, shared))
        except OSError as error:
            raise DataError(f"--html {html}: cannot be written: {error.strerror}") from error
        say(f"written: {html}")


def _check_outputs(html: Path | None, output: Path | None) -> None:
    """Find fault before the work."""
    from sharegen.results.journal.output import refuse_journal, refuse_what_is_no_file
    from sharegen.results.report import figures

    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html {html}: the page's name must end in .html")
    if output is not None:
        known = output.suffix.lower() == figures.SUFFIX
        if not known and (output.is_file() or (output.suffix and not output.is_dir())):
            raise UsageError(f"--output {output}: must end in .svg, or be a folder")
    for flag, path in (("--html", html), ("--output", output)):
        if path is not None:
            if not path.is_dir():  # which has a file for each picture
                refuse_what_is_no_file(path, flag)
            refuse_journal(path, flag)


def _problems(run: Run, for_page: bool, for_pictures: bool) -> list[Problem]:
    """What was asked, rendered again from the recorded configuration, where that is of use.

    A line on stderr says why where it cannot be done; the report then goes without.
    """
    from sharegen.job.reordering import load_asked
    from sharegen.workload.configuration import Configuration

    lacks_difficulty = run.is_code and not any(outcome.difficulty for outcome in run.outcomes)
    is_wanted = for_page or (for_pictures and lacks_difficulty)
    if not (is_wanted and run.file.configuration):
        return []
    asked = {o.problem_id: o.samples[0].record.prompt_hash for o in run.outcomes}
    try:
        problems = load_asked(Configuration.from_settings(run.file.settings)).problems
    except SharegenError as error:
        say(f"{run.path}: the report goes without the questions: {error}")
        return []
    return [problem for problem in problems if asked.get(problem.id) == problem.prompt_hash]


def _difficulties(problems: Sequence[Problem]) -> dict[str, str]:
    levels = {problem.id: problem.fields.get("difficulty") for problem in problems}
    return {name: str(level) for name, level in levels.items() if level is not None}


def _prompts(runs: Sequence[Sequence[Problem]]) -> tuple[dict[str, str], list[str | None]]:
    """Return each problem's own part of its prompt; and for each run the part that all prompts
    share.
    """
    own: dict[str, str] = {}
    shared: list[str | None] = []
    for problems in runs:
        of_run, beginning = _split({problem.id: str(problem.prompt) for problem in problems})
        own = of_run | own
        shared.append(beginning or None)
    return own, shared


def _split(texts: dict[str, str]) -> tuple[dict[str, str], str]:
    """What all texts begin with, up to the end of a line, is taken off and given apart."""
    if len(texts) < 2:
        return texts, ""
    first, last = min(texts.values()), max(texts.values())  # they differ first of all
    pairs = enumerate(zip(first, last, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))
    length = first.rfind("\n", 0, same) + 1
    return {name: text[length:] for name, text in texts.items()}, first[:length].strip()
