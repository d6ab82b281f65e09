"""lm-evaluation-harness over this engine and over its own `hf` model, on the bundled data.

    python -m benchmarks harness --rows 50

The harness's own gsm8k and a multiple-choice task over local files: with examples that all rows
share, with others for each row, and with several samples of each question. Each is one whole call
of `simple_evaluate`, loading included, in this process. A JSON line for each task on stdout.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

from sharegen.workload.recipe import RECIPES

_DATA = RECIPES / "tinymath"
_FIXED = "fewshot_config: {sampler: first_n, split: %s}\n"
_SAMPLED = (
    "repeats: 8\ngeneration_kwargs: {until: ['Question:'], do_sample: true, temperature: 0.7}\n"
)


def tasks(folder: Path, rows: int) -> list[str]:
    """Write the tasks over the first `rows` rows into a folder; returns their names."""
    import lm_eval

    own = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    files = f"{{train: {_DATA}/train.jsonl, test: {_DATA}/test.jsonl}}"
    gsm8k = (
        f"include: {own}\ndataset_path: json\ndataset_name: null\n"
        f"dataset_kwargs: {{data_files: {files}}}\n"
    )
    choices = (
        f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/choices.jsonl}}}}\n"
        "output_type: multiple_choice\ntest_split: test\nfewshot_split: test\nnum_fewshot: 5\n"
        'doc_to_text: "Question: {{question}}\\nAnswer: {{work}}####"\n'
        'doc_to_choice: "{{choices}}"\ndoc_to_target: label\nmetric_list: [{metric: acc}]\n'
    )
    with open(folder / "choices.jsonl", "w", encoding="utf-8") as file:
        for line in (_DATA / "test.jsonl").read_text(encoding="utf-8").splitlines()[:rows]:
            row = json.loads(line)
            work, _, gold = row["answer"].partition("#### ")
            near = [str(int(gold) + step) for step in range(4)]
            row = {"question": row["question"], "work": work, "choices": near, "label": 0}
            file.write(json.dumps(row) + "\n")
    written = {
        "gsm8k_repeats": gsm8k + _FIXED % "train" + _SAMPLED,
        "gsm8k_same_examples": gsm8k + _FIXED % "train",
        "choices_same_examples": choices + _FIXED % "test",
        "gsm8k_other_examples": gsm8k,
        "choices_other_examples": choices,
    }
    for name, text in written.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{text}", encoding="utf-8")
    return list(written)


def bench_harness(rows: int, batch: int) -> list[dict[str, Any]]:
    """Time every task both ways, one after the other; returns the numbers.

    batch: sequences that `hf` takes together.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    import sharegen.lm_eval  # noqa: F401  # which registers the model

    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    found = []
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        written = tasks(folder, rows)
        manager = TaskManager(include_path=name, include_defaults=False)  # which are thousands

        def seconds(model: str, task: str, **options: Any) -> float:
            started = time.perf_counter()
            lm_eval.simple_evaluate(
                model=model,
                model_args=f"pretrained={_DATA / 'model'},dtype=float32",
                device="cpu",
                tasks=[task],
                task_manager=manager,
                limit=rows,
                bootstrap_iters=0,
                **options,
            )
            return time.perf_counter() - started

        seconds("sharegen", written[1])  # what is imported on the way is no one's time
        seconds("hf", written[1], batch_size=batch)
        for path in folder.glob("runs/*"):
            if path.is_file():
                path.unlink()  # or the task would be answered from the journal
        for task in written:
            ours, theirs = seconds("sharegen", task), seconds("hf", task, batch_size=batch)
            found.append(
                {"bench": "harness", "task": task, "rows": rows, "sharegen_seconds": round(ours, 2),
                 "hf_seconds": round(theirs, 2), "ratio": round(theirs / ours, 2)}
            )  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    return found
