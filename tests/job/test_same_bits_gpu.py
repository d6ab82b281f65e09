"""On GPUs in the deterministic mode: one journal, byte for byte, whatever the batch was.

`test_all_of_it` is the matrix of kinds of models and precisions, which one card does in three
minutes; what fails there is taken apart by `test_each_way`. With SHAREGEN_SAME_BITS=FILE each
comparison is a line of that file as soon as it is made.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.engine import Engine
from sharegen.engine.model.fp8.blocks import quantise_blocks
from sharegen.engine.model.load import load_model
from sharegen.job.run_job import run_job
from sharegen.results.journal.run_file import RunFile
from tests.engine.model.stored.packers import rewrite
from tests.engine.model.stored.test_forms import BLOCKS
from tests.job.same_bits import (
    KINDS,
    REAL,
    UNEQUAL,
    WINDOWED,
    differing,
    first_difference,
    job_of,
    keep_every_third_line,
    lines,
    make_place,
    tell,
    ways_of,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bfloat16"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8"},
    "fp16": {"dtype": "float16"},
    "blocks": {"dtype": "bfloat16"},  # of the checkpoint, which is multiplied as it is stored
}
MATRIX = [(kind, how) for how in ("bf16", "fp8") for kind in KINDS] + [("dense", "fp16")]
MATRIX += [(kind, "bf16") for kind in (*WINDOWED, UNEQUAL)]
MATRIX += [("dense", "blocks"), ("MoE", "blocks")]
EACH = ("few rows", "killed and resumed", "preempted", "extended", "in shards")

_places: dict[str, Path] = {}
_wanted: dict[tuple[str, ...], list[str]] = {}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and journals lie that several tests use."""
    return Path(tmp_path_factory.getbasetemp())


def place_of(kind: str, folder: Path, how: str = "bf16") -> Path:
    name = f"{kind} in blocks" if how == "blocks" else kind
    if name not in _places:
        _places[name] = make_place(folder / name, kind, REAL, "cuda", torch.bfloat16)
        if how == "blocks":
            rewrite(_places[name], BLOCKS, in_blocks)
        torch.cuda.empty_cache()
    return _places[name]


def in_blocks(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of layers as Qwen3-FP8 has them."""
    stored = dict(tensors)
    for name in tensors:
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"] = quantise_blocks(tensors[name])
    return stored


def compare(folder: Path, kind: str, how: str, way: str, **more: Any) -> int:
    """How many lines of one way are not those of the job at once."""
    ways = ways_of(
        place_of(kind, folder, how), REAL, REAL.cache[kind],
        **{"device": "cuda", **PRECISIONS[how], **more},
    )  # fmt: skip
    names = [str(value) for value in more.values()]
    if (kind, how, *names) not in _wanted:
        first = folder / f"{'-'.join((kind, how, *names))}.jsonl"
        ways["at once"](first)
        if how == "blocks":
            run = RunFile.read(first.parent / ".sharegen" / f"{first.stem}.run.json")
            assert run is not None and run.configuration["quantization"] == "fp8-blocks"
        _wanted[kind, how, *names] = lines(first)
    path = folder / f"{'-'.join((kind, how, *names, way))}.jsonl"
    said = ways[way](path)
    found = differing(_wanted[kind, how, *names], path)
    tell(
        kind=kind, how=how, way=way, said=said, differing=found,
        where=first_difference(_wanted[kind, how, *names], path), **more,
    )  # fmt: skip
    return found


@pytest.mark.parametrize(("kind", "how"), MATRIX)
def test_all_of_it(kind: str, how: str, folder: Path) -> None:
    """Uncompiled, which begins sooner; compiled layers are the next test's."""
    assert compare(folder, kind, how, "all of it", compile=False) == 0


@pytest.mark.parametrize(("kind", "how"), [("dense", "bf16"), ("MoE", "bf16"), ("dense", "blocks")])
def test_all_of_it_compiled(kind: str, how: str, folder: Path) -> None:
    assert compare(folder, kind, how, "all of it") == 0


@pytest.mark.parametrize("way", EACH)
@pytest.mark.parametrize(("kind", "how"), MATRIX)
def test_each_way(kind: str, how: str, way: str, folder: Path) -> None:
    assert compare(folder, kind, how, way, compile=False) == 0


@two_gpus
@pytest.mark.parametrize("how", ["bf16", "fp8"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_workers(kind: str, how: str, folder: Path) -> None:
    """They draw what one draws, in whichever order their samples come, some of them resumed."""
    place = place_of(kind, folder)
    found = []
    for workers in (1, 2):
        path = folder / f"{kind}-{how}-{workers}-workers.jsonl"
        job = job_of(
            place, REAL, REAL.samples, max_sequences=256 * workers, workers=workers,
            device="cuda", compile=False, **PRECISIONS[how],
        )  # fmt: skip
        run_job(job, path)
        if workers == 2:
            keep_every_third_line(path)
            run_job(job, path)
        found.append(path)
    count = differing(lines(found[0]), found[1])
    tell(kind=kind, how=how, way="two workers", differing=count)
    assert count == 0


@two_gpus
@pytest.mark.parametrize("way", ["all of it", "few rows"])
def test_two_ranks(way: str, folder: Path) -> None:
    assert compare(folder, "dense", "bf16", way, compile=False, tensor_parallel_size=2) == 0


def test_pool_sizes_and_orders_of_arrival(folder: Path) -> None:
    """A fuzz: every sample has its bits in an engine of any size, whatever comes first."""
    rng = random.Random(0)
    shared = [rng.randrange(5, 300) for _ in range(900)]
    params = SamplingParams(max_tokens=60, temperature=1.0)
    requests = []
    for i in range(40):
        own = [rng.randrange(5, 300) for _ in range(rng.randrange(1, 200))]
        prompt = shared[: rng.choice([0, 300, 900])] + own
        requests.append(Request(i, prompt, params, range(rng.choice([1, 2, 7, 30]))))
    seen: dict[tuple[int, int], tuple[list[int], float]] = {}
    wrong = set()
    for turn in range(4):
        config = EngineConfig(
            max_sequences=rng.choice([16, 100, 500]) if turn else 1024,
            kv_cache_memory=rng.choice([24, 40, 200]) << 20 if turn else 1 << 30,
            prefill_tokens=rng.choice([1024, 2000, 8192]),
            swap_space=rng.choice([0.0, 0.25]) if turn else 0.0,
            compile=False,
            deterministic=True,
        )
        model = load_model(str(place_of("dense", folder)), device="cuda", dtype="bfloat16")
        engine = Engine(model, None, config)
        rng.shuffle(requests)
        for done in engine.generate(requests, lengths=Lengths(ended=Counter({2: 1 << 20}))):
            found = done.token_ids, done.cumulative_logprob
            key = done.request.key, done.sample
            if seen.setdefault(key, found) != found:
                wrong.add(key)
        tell(way="fuzz", turn=turn, preemptions=engine.stats.preemptions, differing=len(wrong))
        engine.close()
    assert not wrong, f"{len(wrong)} of {len(seen)}"
