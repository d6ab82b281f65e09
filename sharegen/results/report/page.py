"""One self-contained page about one or several runs: `sharegen report --html FILE`.

It asks for nothing from outside, and says so to the browser: its content security policy allows
no request at all, and no script but its own, known by its hash. What models and datasets wrote
is data in it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from string import Template

from sharegen.results.report.comparison import comparisons
from sharegen.results.report.embed import bundle_elements, embed
from sharegen.results.report.figures import inline_svg
from sharegen.results.report.measure import Measured, headline, settings
from sharegen.results.report.picture import Picture

_LONG = 400  # characters of a setting that get a box of their own


def render(
    runs: Sequence[Measured],
    pictures: Sequence[Picture],
    prompts: Mapping[str, str],
    shared: Sequence[str | None],
) -> bytes:
    """The page as UTF-8.

    prompts: each problem's own part of its prompt, where it is known; shared: for each run the
        part that all its prompts begin with.
    """
    files = resources.files(__package__)
    template, style, script = (
        files.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    index, bundles = embed(runs, prompts)
    page = Template(template).substitute(
        title=_title(runs),
        several=' class="several"' if len(runs) > 1 else "",
        lead=_lead(runs),
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
        numbers=_numbers(runs),
        notes=_notes(runs),
        pictures="\n".join(map(_figure, pictures)),
        search_hint="id, question or answer" if prompts else "id or answer",
        configuration=_configuration(runs, shared),
        index=index,
        bundles="\n".join(bundle_elements(bundles)),
    )
    return page.encode("utf-8", "backslashreplace")  # a path may hold half a surrogate pair


def _title(runs: Sequence[Measured]) -> str:
    return escape(" · ".join(run.name for run in runs))


def _lead(runs: Sequence[Measured]) -> str:
    """Model and dataset, where all runs agree on them."""
    parts = []
    for name, values in settings([run.run for run in runs]):
        if name in ("model", "dataset.source") and len(set(values)) == 1 and values[0]:
            parts.append(escape("/".join(values[0].split("/")[-2:])))
    lead = f'<p class="lead">{" on ".join(parts)}</p>' if parts else ""
    return lead + "".join(_made(run, several=len(runs) > 1) for run in runs)


def _made(measured: Measured, several: bool) -> str:
    """When, where and by what command a run was made, as far as its run.json says."""
    found = {name: str(value) for name, value in measured.run.file.environment.items()}
    parts = [
        found.get("date", "").replace("T", " "),
        found.get("device", ""),
        found.get("host", ""),
    ]
    said = [escape(part) for part in parts if part]
    if "command" in found:
        said.append(f"<code>{escape(found['command'])}</code>")
    name = f"{escape(measured.name)}: " if several else ""
    return f'<p class="quiet made">{name}{" · ".join(said)}</p>' if said else ""


def _numbers(runs: Sequence[Measured]) -> str:
    if len(runs) == 1:
        cards = (
            f'<div><dt>{escape(what)}</dt><dd class="value">{escape(value)}</dd>'
            f'<dd class="how">{escape(how)}</dd></div>'
            for what, value, how in headline(runs[0])
        )
        return f'<dl class="stats">{"".join(cards)}</dl>'
    tables = [{what: (value, how) for what, value, how in headline(run)} for run in runs]
    names = dict.fromkeys(what for table in tables for what in table)
    rows = (
        [what, *(_number(*table[what]) if what in table else "–" for table in tables)]
        for what in names
    )
    return f'<div class="scroll panel">{_table(["", *_run_names(runs)], rows, "plain")}</div>'


def _number(value: str, how: str) -> str:
    note = f'<br><span class="how">{escape(how)}</span>' if how else ""
    return f"<strong>{escape(value)}</strong>{note}"


def _run_names(runs: Sequence[Measured]) -> list[str]:
    """Names as markup, each with the colour that its pictures use."""
    return [
        f'<span class="key" style="background:var(--run-{index % 8})"></span>{escape(run.name)}'
        for index, run in enumerate(runs)
    ]


def _notes(runs: Sequence[Measured]) -> str:
    notes = [
        f"{run.name}: {note}." if len(runs) > 1 else f"{note}."
        for run in runs
        for note in run.notes
    ]
    notes += [f"{found.in_words()}." for found in comparisons(runs)]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if notes else ""


def _figure(picture: Picture) -> str:
    rows = ([escape(cell) for cell in row] for row in picture.rows)
    header = [escape(name) for name in picture.header]
    return (
        f'<figure aria-labelledby="title-{picture.name}">'
        f'<h3 id="title-{picture.name}">{escape(picture.title)}</h3>'
        f"{inline_svg(picture)}"
        f'<figcaption class="caption">{escape(picture.caption)}</figcaption>'
        f'<details><summary>The numbers</summary><div class="tall">'
        f"{_table(header, rows, 'plain')}</div></details></figure>"
    )


def _configuration(runs: Sequence[Measured], shared: Sequence[str | None]) -> str:
    table = settings([run.run for run in runs])
    if any(shared):
        table.append(("all prompts begin with", list(shared)))
    if not table:
        return '<p class="quiet">There is no run.json of the journal.</p>'
    several = len(runs) > 1
    names = _run_names(runs) if several else ["value"]
    head = "".join(f'<th scope="col">{name}</th>' for name in ["setting", *names])
    body = []
    for name, values in table:
        differs = several and len(set(values)) > 1
        cells = "".join(f"<td>{_setting(value)}</td>" for value in values)
        mark = ' <span class="how">(differs)</span>' if differs else ""
        row = ' class="differs"' if differs else ""
        body.append(f'<tr{row}><th scope="row">{escape(name)}{mark}</th>{cells}</tr>')
    return (
        f'<div class="scroll panel"><table class="plain settings"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _setting(value: str | None) -> str:
    if value is None:
        return "–"
    if len(value) > _LONG:
        return f'<div class="long" tabindex="0">{escape(value)}</div>'
    return escape(value)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]], kind: str) -> str:
    """A table of cells that are markup already; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{cell}</th>' for cell in header)
    body = []
    for row in rows:
        first, *rest = row
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return (
        f'<table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )
