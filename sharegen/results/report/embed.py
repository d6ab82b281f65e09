"""The problems and their samples as data inside a page.

An index of all problems, small enough to be parsed at once, and the samples themselves in gzipped
bundles that the page unpacks when a problem in them is opened: so a page of 50,000 completions
opens at once. Base64 holds no `<`, and the index escapes its own: no completion can end the
element that holds it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharegen.results.report.measure import Measured
from sharegen.results.report.outcomes import ProblemOutcome, Sample
from sharegen.results.scoring.vote import natural_order

BUNDLE_SIZE = 1 << 18
"""Characters of JSON after which a bundle is closed."""

_SNIPPET = 160


@dataclass
class _Bundles:
    """Gzipped lists of problems, numbered across all runs."""

    done: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, value: Any) -> tuple[int, int]:
        """Returns the bundle and the position in it."""
        text = json.dumps(value, separators=(",", ":"))
        if self._open and self._size + len(text) > BUNDLE_SIZE:
            self.close()
        self._open.append(text)
        self._size += len(text)
        return len(self.done), len(self._open) - 1

    def close(self) -> None:
        if self._open:
            packed = gzip.compress(f"[{','.join(self._open)}]".encode(), 6, mtime=0)
            self.done.append(base64.b64encode(packed).decode())
            self._open, self._size = [], 0


def embed(runs: Sequence[Measured], prompts: Mapping[str, str]) -> tuple[str, list[str]]:
    """The index as JSON that is safe inside <script>, and the bundles in base64.

    prompts: each problem's own part of its prompt, where it is known.
    """
    by_id = [{outcome.problem_id: outcome for outcome in run.run.outcomes} for run in runs]
    ids = sorted({problem_id for table in by_id for problem_id in table}, key=natural_order)
    bundles = _Bundles()
    of_runs = [[_entry(table.get(i), bundles, prompts.get(i)) for i in ids] for table in by_id]
    bundles.close()
    known = [next(table[i] for table in by_id if i in table) for i in ids]
    index = {
        "runs": [
            {"name": run.name, "votes": run.run.has_votes, "verdicts": run.run.has_verdicts}
            for run in runs
        ],
        "ids": ids,
        "gold": [outcome.gold for outcome in known],
        "levels": [outcome.difficulty for outcome in known],
        "snippets": _snippets([prompts.get(i) or "" for i in ids]) if prompts else None,
        "problems": of_runs,
    }
    return in_script(index), bundles.done


def in_script(value: Any) -> str:
    """JSON in ASCII that cannot end the <script> element around it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _entry(
    outcome: ProblemOutcome | None, bundles: _Bundles, prompt: str | None
) -> list[Any] | None:
    """A problem's row in one run, in the order in which the page's script names the fields."""
    if outcome is None:
        return None
    winner, margin = outcome.winner, outcome.margin
    bundle, position = bundles.add(_details(outcome, prompt))
    return [
        len(outcome.samples),
        outcome.judged,
        outcome.right,
        winner,
        outcome.votes[winner] if winner is not None else 0,
        sum(outcome.votes.values()),
        None if margin is None else round(margin, 3),
        _verdict(outcome.vote_right),
        bundle,
        position,
    ]


def _details(outcome: ProblemOutcome, prompt: str | None) -> dict[str, Any]:
    right = {key: outcome.right_of(key) for key in outcome.votes}
    return {
        "prompt": prompt,
        "votes": [[key, votes, _verdict(right[key])] for key, votes in outcome.votes.items()],
        "samples": list(map(_sample, outcome.samples)),
    }


def _sample(sample: Sample) -> list[Any]:
    record, score = sample.record, sample.score
    logprob = record.cumulative_logprob
    return [
        record.sample,
        _verdict(sample.right),
        record.num_tokens,
        record.finish_reason,
        None if logprob is None else round(logprob, 2),
        record.answer,
        score.result if score is not None else None,
        score.tests_passed if score is not None else None,
        score.tests_total if score is not None else None,
        score.message if score is not None else None,
        record.completion,
    ]


def _verdict(right: bool | None) -> int | None:
    return None if right is None else int(right)


def _snippets(prompts: Sequence[str]) -> list[str]:
    """The beginnings of all prompts, without the labels around them: "Question:", "Answer:"."""
    known = [prompt.split() for prompt in prompts if prompt]
    front = back = 0
    if len(known) > 1:
        front = _labels(known)
        back = _labels([words[front:][::-1] for words in known])
    return [_shortened(prompt.split(), front, back) for prompt in prompts]


def _labels(texts: Sequence[Sequence[str]]) -> int:
    """Words that all begin with, up to the last one with a colon."""
    same = 0
    for number, words in enumerate(zip(*texts, strict=False), start=1):
        if len(set(words)) > 1:
            break
        if words[0].endswith(":"):
            same = number
    return same


def _shortened(words: Sequence[str], front: int, back: int) -> str:
    text = " ".join(words[front : len(words) - back])
    return text if len(text) <= _SNIPPET else text[: _SNIPPET - 1] + "…"


def bundle_elements(bundles: Sequence[str]) -> Iterator[str]:
    """One inert element a bundle."""
    for number, bundle in enumerate(bundles):
        yield f'<script type="text/plain" id="bundle-{number}">{bundle}</script>'
