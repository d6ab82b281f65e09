"""A job with an FP8 KV cache draws the same whoever draws it: which KV is narrow is the job's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sharegen.common.shard import Shard
from sharegen.job.dry_run import plan_job
from sharegen.job.run_job import run_job
from sharegen.workload.configuration import Configuration, Machine
from tests.job.parts import configure, records


def narrow(folder: Path, samples: int, **machine: Any) -> Configuration:
    chosen = Machine(device="cpu", kv_cache_dtype="fp8", workers=1)
    update = {"machine": chosen.model_copy(update=machine)}
    return configure(folder, samples=samples).model_copy(update=update)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.turn(2)
def test_parts_of_it_draw_what_the_whole_draws(folder: Path, tmp_path: Path, samples: int) -> None:
    path = tmp_path / "whole.jsonl"
    run_job(narrow(folder, samples), path)
    whole = records(path)
    parts: dict[tuple[str, int | None], dict[str, Any]] = {}
    for index in (1, 2):
        shard = Shard(index, 2)
        parts |= records(run_job(narrow(folder, samples), tmp_path / "a.jsonl", shard=shard).path)
    assert parts == whole  # to the bit
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::3]))
    assert run_job(narrow(folder, samples, max_sequences=3), path).drawn > 0
    assert records(path) == whole
    dealt = tmp_path / "dealt.jsonl"
    run_job(narrow(folder, samples, workers=2), dealt)
    assert records(dealt) == whole


def test_the_plan_tells_how_much_more_fits(folder: Path) -> None:
    """In the same memory, in float32: a sample's tokens take a quarter, prompts what they took."""
    memory = {"kv_cache_memory": 200 << 10, "dtype": "float32"}
    wide = plan_job(narrow(folder, 3, kv_cache_dtype="auto", **memory))
    some = plan_job(narrow(folder, 3, **memory))
    assert some.kv_suffix_bytes < wide.kv_suffix_bytes / 3
    assert wide.fit < some.fit
    with_scales = wide.kv_shared_bytes * 9 / 8  # room of scales beside heads of 8
    assert some.kv_shared_bytes == with_scales
    own = plan_job(narrow(folder, 1, **memory))  # prompts with one sample are narrow, too
    assert own.kv_shared_bytes < some.kv_shared_bytes
