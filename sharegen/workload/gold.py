"""The gold answer of a row, as its text: what the recipe's `answer.gold` finds in the row.

What is read out of that text is for job/gold_reading.py to say, which knows the readers of answers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sharegen.common import confined
from sharegen.common.names import listed
from sharegen.workload import sections, template
from sharegen.workload.configuration import Configuration
from sharegen.workload.items import Item
from sharegen.workload.template import Overrun, RenderError, is_text


@dataclass(frozen=True)
class Gold:
    """The gold answer of a row, or why it has none.

    where: the row; fault: completes "<row>: ...".
    """

    where: str
    text: str | None
    fault: str | None = None


def unread_in_words(golds: Collection[Gold]) -> str | None:
    """How many gold answers are known, and the first rows without one; None where all are."""
    unread = [gold for gold in golds if gold.text is None]
    if not unread:
        return None
    known = len(golds) - len(unread)
    faults = [f"{gold.where}: {gold.fault}" for gold in unread[: _NAMED if known else 1]]
    more = f"; and {len(unread) - len(faults):,} more" if len(unread) > len(faults) else ""
    said = f"gold answers are known of {known:,} of {len(golds):,} problems"
    return f"{said}: {'; '.join(faults)}{more}"


_NAMED = 3  # rows whose gold answer cannot be read


def golds_of(items: Iterable[Item], configuration: Configuration) -> dict[str, Gold]:
    """The gold answers of rows by problem id; empty for a recipe that looks for none.

    Raises Overrun for a template or pattern that takes too long.
    """
    wanted = configuration.answer.gold if configuration.answer else None
    if wanted is None:
        return {}
    return {item.id: _gold_of(item, wanted, configuration.is_bundled) for item in items}


def _gold_of(item: Item, wanted: sections.Gold, is_bundled: bool) -> Gold:
    where = item.row.where
    try:
        text = _text_of(item.fields, wanted)
    except Overrun:
        raise
    except RenderError as error:
        return Gold(where, None, str(error))
    if not text.strip():
        return Gold(where, None, "its gold answer is empty")
    if wanted.pattern is None:
        return Gold(where, text)
    try:
        find = _captured if is_bundled else _confined
        return Gold(where, find(wanted.pattern, text) or text)
    except confined.Exceeded as error:
        raise Overrun(f"the pattern 'answer.gold.pattern' {error}") from None


def _text_of(fields: Mapping[str, Any], wanted: sections.Gold) -> str:
    """The text that the recipe's field or template gives. Raises RenderError for none."""
    if wanted.template is not None:
        return template.render("answer.gold.template", wanted.template, fields)
    name = wanted.field
    assert name is not None
    if name not in fields:
        raise RenderError(
            f"it has no field {name!r} for its gold answer (it has {listed(fields)}): "
            f"{template.instead(name, fields)}"
        )
    value = fields[name]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if is_text(value):
        return str(value)
    what = f"a list of {len(value)}" if isinstance(value, list) else f"a {type(value).__name__}"
    raise RenderError(
        f"its gold answer, the field {name!r}, is {what}: say which part of it is the answer by "
        f"answer.gold.template, such as {{{{ {name}{_first_part(value)} }}}}"
    )


def _first_part(value: Any) -> str:
    """How a template names one part of a value."""
    key = next((key for key in value if str(key).isidentifier()), None) if value else None
    return f".{key}" if isinstance(value, Mapping) and key is not None else "[0]"


def _confined(pattern: str, text: str) -> str | None:
    return confined.call(_captured, pattern, text)


def _captured(pattern: str, text: str) -> str | None:
    """What the first group (or all) of the first match is."""
    match = re.search(pattern, text)
    if match is None:
        return None
    return next((group for group in match.groups() if group is not None), match[0]).strip()
