"""A plan for a GPU that is not here: what the weights leave it for KV, by the config alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sharegen.cli import main
from sharegen.workload.recipe import RECIPES

SHAPE = Path(__file__).parents[2] / "benchmarks" / "shapes" / "gpt-oss-120b" / "config.json"
GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """gpt-oss-120b's config, which says that its weights are MXFP4; there are none."""
    shutil.copy(SHAPE, tmp_path)
    for path in (RECIPES / "tinymath" / "model").glob("tokenizer*.json"):
        shutil.copy(path, tmp_path)
    return tmp_path


def planned(folder: Path, capsys: Any, *more: str) -> str:
    job = ["plan", "self-consistency", "--model", str(folder), "--limit", "32", "-n", "32"]
    with pytest.raises(SystemExit) as exit:
        main([*job, *more])
    out, err = capsys.readouterr()
    assert exit.value.code == 0, err
    return str(out)


@pytest.mark.slow
def test_gpt_oss_120b_in_fp8_fits_one_h200(folder: Path, capsys: Any) -> None:
    card = ("--quantization", "fp8", "--gpu-memory", "140.4GiB", "--json")
    plan = json.loads(planned(folder, capsys, *card))
    assert 109 * GIB < plan["weights_bytes"] < 112 * GIB
    assert plan["gpu_bytes"] == int(140.4 * GIB)
    assert plan["fit"] == 1024 and plan["waves"] == 1
    # What is left once the weights are there, and no more than the job can use.
    assert plan["kv_cache_bytes"] < 0.85 * (plan["gpu_bytes"] - plan["weights_bytes"])


def test_weights_that_do_not_fit_are_told(folder: Path, capsys: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    said = planned(folder, capsys, "--gpu-memory", "12GiB")
    assert " of the GPU's 12.0 GiB" in said and "none: the weights do not fit" in said


def test_a_cut_has_no_machine(folder: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["plan", "self-consistency", "--shards", "2", "--gpu-memory", "80GiB"])
    said = capsys.readouterr().err
    assert exit.value.code == 2 and "leave out --gpu-memory" in said and said.count("\n") == 1
