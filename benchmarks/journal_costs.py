"""What the host does for a sample that has ended, without a model: its record, its line, its end.

    python -m benchmarks journal

A job like Tokasaurus's benchmark, GSM8K with many samples of few problems, whose completions are
words drawn at random: each becomes a record with its answer and a line of a journal, and then the
job is summed up as `sharegen run` does it in the end. Seconds are those of this thread's processor.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.job.imports import import_engine
from sharegen.job.job_content import JobContent
from sharegen.job.recording import record_of
from sharegen.job.reordering import load_asked
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.pool import Pool
from sharegen.results.screen.summary import print_summary
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.problem import Problem

_TEXTS = 997  # that differ; a prime, so that problems do not all have the same ones
_MARKS = [".", ",", "\n", " 12", " 3.5", " $40", " is", " so", " =", " the answer is 7."]


def bench_journal(problems: int, samples: int, words: int) -> dict[str, float]:
    """Microseconds a sample, by what is done with it.

    words: of each completion, at most; some end sooner.
    """
    flags = {"dataset": {"limit": problems}, "sampling": {"samples": samples}}
    configuration = resolve("self-consistency", None, flags)
    content = JobContent.of(configuration, load_asked(configuration))
    asked = content.workload.problems
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        identity = configuration.identity | {"dtype": "bfloat16"}
        extent, reading = configuration.extent, content.reading
        found = FoundJournal(path)
        with Journal.open(path, identity, extent=extent, reading=reading, found=found) as journal:
            ended = list(_completions(len(asked), samples, words))
            recording, appending = _write(journal, ended, asked, configuration)
            run = journal.run
        begun = time.thread_time()
        records = list(Pool([found]).read_by(reading).records())
        read = time.thread_time()
        questions = {problem.id: problem.prompt.own for problem in asked}
        with redirect_stdout(io.StringIO()):
            print_summary(path, records, run, samples, questions)
        summed = time.thread_time()
        size = path.stat().st_size
    each = 1e6 / len(records)
    return {
        "samples": len(records),
        "bytes_a_sample": round(size / len(records)),
        "record_us": round(recording * each, 1),
        "append_us": round(appending * each, 1),
        "read_us": round((read - begun) * each, 1),
        "summary_us": round((summed - read) * each, 1),
    }


def _write(
    journal: Journal,
    completions: list[Completion],
    asked: list[Problem],
    configuration: Configuration,
) -> tuple[float, float]:
    """Seconds in which records are made, and in which they are appended."""
    import_engine(configuration)  # which a job has done before its first sample
    recording = appending = 0.0
    for completion in completions:
        begun = time.thread_time()
        problem = asked[completion.request.key]
        record = record_of(completion, problem, configuration, "bfloat16")
        made = time.thread_time()
        journal.append(record)
        recording += made - begun
        appending += time.thread_time() - made
    return recording, appending


def _completions(problems: int, samples: int, words: int) -> Iterator[Completion]:
    """All samples, in the order in which a batch ends: a sample of each problem, then the next."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = [" " + "".join(rng.choices(letters, k=rng.randint(1, 8))) for _ in range(5_000)]
    lengths = [rng.randint(1, words) for _ in range(_TEXTS)]
    texts = ["".join(rng.choices(known, k=length)) for length in lengths]
    texts = [_marked(text, rng) for text in texts]
    requests = [Request(key, [1], SamplingParams(), range(samples)) for key in range(problems)]
    for number in range(problems * samples):
        which = number % _TEXTS
        ids = [1] * lengths[which]
        reason = "length" if which % 10 == 0 else "stop"
        sample, problem = divmod(number, problems)
        yield Completion(requests[problem], sample, ids, texts[which], reason, None, -1.5)  # type: ignore[arg-type]


def _marked(text: str, rng: random.Random) -> str:
    """The text with marks and numbers between some of its words."""
    parts = text.split(" ")
    return " ".join(part + (rng.choice(_MARKS) if rng.random() < 0.1 else "") for part in parts)
