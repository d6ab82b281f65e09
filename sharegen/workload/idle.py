"""What a job says that would do nothing is a mistake, and is refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharegen.common.parameters.sampling import FILTERS, PENALTIES
from sharegen.errors import UsageError
from sharegen.workload import template
from sharegen.workload.flags import FLAGS
from sharegen.workload.recipe import Job, Recipe
from sharegen.workload.sampling_section import Sampling

_BEAMS = ("beam_width", "length_penalty", "early_stopping")
_DRAWN = (*FILTERS, *PENALTIES, "logit_bias", "allowed_token_ids", "bad_words", "min_tokens",
          "structured_outputs", "detokenize", "prompt_logprobs", "stop_when")  # fmt: skip


def refuse_idle_flags(
    recipe: Recipe, job: Job, source: str | None, flags: Mapping[str, Any]
) -> None:
    """A flag that would do nothing is a mistake: a file has no splits, and a folder no configs.

    source: of the rows, as an absolute path where it is here.
    """
    few_shot, k = flags.get("few_shot") or {}, job.few_shot.k
    if (k or few_shot.get("file")) and not (job.chat.user if job.chat.enabled else job.example):
        flag = "--few-shot" if k else "--few-shot-file"
        raise UsageError(f"{flag}: the recipe {recipe.name} has no template for examples")
    if few_shot.get("file") and not k and "k" not in few_shot:  # a k of 0 may be one of several
        raise UsageError("--few-shot-file: no examples are wanted: say how many with --few-shot")
    for key in ("where", "rows", "needles") if job.dataset.requests else ():
        if getattr(job.dataset, key):
            raise UsageError(f"dataset.{key}: the rows are requests, which it does not fit")
    dataset = flags.get("dataset") or {}
    is_made = job.dataset.needles is not None
    if dataset.get("config") is not None and (is_made or (source and Path(source).exists())):
        what = "the document is made here" if is_made else f"{source} is here"
        raise UsageError(f"--dataset-config is for the hub, and {what}: leave it out")
    if job.dataset.revision is not None and (is_made or (source and Path(source).exists())):
        what = "the document is made here" if is_made else f"{source} is here"
        raise UsageError(f"--dataset-revision is for the hub, and {what}: leave it out")
    if dataset.get("split") is not None and source is not None and Path(source).is_file():
        raise UsageError(f"--split: {source} is one file and has no splits: leave it out")


def refuse_idle_document(recipe: Recipe, job: Job) -> None:
    """A document that no template shows, or that stands beside one that is made."""
    if job.dataset.document is not None and "document" not in _names(job):
        raise UsageError(f"--document: the recipe {recipe.name} has no template that uses it")
    if job.dataset.document is not None and job.dataset.needles is not None:
        raise UsageError(
            f"--document {job.dataset.document}: needs --dataset QUESTIONS: the recipe's own are "
            "about a document that it makes itself"
        )


def check_decoding(sampling: Sampling) -> None:
    """Refuse keys that a beam search ignores, and beam keys without a beam search."""
    plain = Sampling(temperature=0 if sampling.decoding == "beam" else 1)
    for name in _DRAWN if sampling.decoding == "beam" else _BEAMS:
        value, idle = getattr(sampling, name), getattr(plain, name)
        if value == idle or name not in sampling.model_fields_set:
            continue
        if name in _BEAMS:
            raise UsageError(f"sampling.{name} is for a beam search: --set sampling.decoding=beam")
        to_do = "leave it out" if idle is None else f"set it to {idle}"
        raise UsageError(
            f"{FLAGS.get(f'sampling.{name}', f'sampling.{name}')} {value}: a beam search follows "
            f"the likeliest texts and has no use for it: {to_do}"
        )
    if sampling.rows < sampling.samples:
        raise UsageError(
            f"sampling.beam_width is {sampling.rows}: {sampling.samples} texts are kept of a "
            "problem: follow at least as many, or lower --samples"
        )


def refuse_idle_rule(recipe: Recipe, job: Job) -> None:
    """A rule that could never stop anything, or would have nothing to read, is a mistake."""
    rule, sampling = job.sampling.rule, job.sampling
    if rule is None:
        return
    flag = f"--stop-when {rule}"
    if rule.votes and job.answer is None:
        raise UsageError(
            f"{flag}: the recipe {recipe.name} takes no answers out of its samples (`answer`), so "
            "there is no vote to decide"
        )
    if not rule.votes and (job.answer is None or job.answer.gold is None) and not job.dataset.rows:
        raise UsageError(
            f"{flag}: the recipe {recipe.name} knows no gold answers (`answer.gold`), so no sample "
            "is right or wrong"
        )
    if rule.votes and sampling.samples < 2:
        raise UsageError(f"{flag}: a vote takes at least 2 samples: give --samples")
    if rule.kind in ("window", "right") and int(rule.value or 0) > sampling.samples:
        raise UsageError(
            f"{flag}: only {sampling.samples} samples are drawn of a problem: give more --samples"
        )
    if sampling.temperature == 0:
        raise UsageError(f"{flag}: at temperature 0 all samples of a problem are one, drawn once")


def refuse_idle_fields(recipe: Recipe, job: Job, reorder: bool) -> None:
    """Refuse free fields without a place in the template, and reordering without free fields."""
    name = "chat.user" if job.chat.enabled else "prompt"
    if job.prompt.free and template.FIELDS not in _names(job):
        raise UsageError(
            f"the recipe {recipe.name}: prompt.free declares fields that are free to move, and the "
            f"template '{name}' has no place for them: write {{{{ {template.FIELDS} }}}} in it"
        )
    if reorder and not job.prompt.free:
        raise UsageError(
            f"--reorder: the recipe {recipe.name} declares no fields that are free to move: name "
            f"them in prompt.free, and write {{{{ {template.FIELDS} }}}} where they stand"
        )


def refuse_no_text(recipe: Recipe, job: Job, token_ids: bool) -> None:
    """Samples without a text are tokens, and nothing can be looked for in them."""
    if job.sampling.detokenize:
        return
    flag = "sampling.detokenize is false"
    if job.sampling.stop:
        raise UsageError(f"{flag}: stop strings are looked for in text: set sampling.stop to []")
    if job.answer is not None or job.dataset.rows is not None or job.dataset.requests:
        raise UsageError(
            f"{flag}: the recipe {recipe.name} reads what samples say: leave it out, or take a "
            "recipe without answers"
        )
    if not token_ids:
        raise UsageError(f"{flag}: the journal would hold nothing of a sample: give --token-ids")


def _names(job: Job) -> set[str]:
    """The fields that the job's own templates use."""
    texts = [job.chat.system, job.chat.user] if job.chat.enabled else [job.prompt.text]
    return set().union(*(template.names(text) for text in texts if text))
