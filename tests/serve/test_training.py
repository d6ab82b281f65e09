"""What a trainer asks of a server: to hold what runs, and to take other weights."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from sharegen import LLM, SamplingParams
from sharegen.serve.limits import Limits
from tests.engine.parallel.forked import Forked
from tests.serve.serving import KV, NAME, Served, serving
from tests.tiny import save_tiny_model

GREEDY: dict[str, Any] = {"prompt": "Tom has 3 apples.", "temperature": 0, "max_tokens": 12}
LONG: dict[str, Any] = {
    "prompt": "Ann", "max_tokens": 300, "seed": 3, "extra_body": {"ignore_eos": True}
}  # fmt: skip
ROLLOUT = "/v1/completions"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models of one shape, and one beside it."""
    top = tmp_path_factory.mktemp("weights")
    for seed in (0, 1, 2):
        save_tiny_model(top / "below" / f"step-{seed}", seed=seed)
    save_tiny_model(top / "elsewhere", seed=3)
    return top / "below"


@pytest.fixture(scope="module")
def texts(weights: Path) -> dict[str, str]:
    """What each of the models says."""
    found = {}
    for folder in weights.iterdir():
        with LLM(folder, kv_cache_memory=KV) as llm:
            params = SamplingParams(temperature=0, max_tokens=12)
            found[folder.name] = llm.generate([GREEDY["prompt"]], params)[0].outputs[0].text
    assert len(set(found.values())) == 3
    return found


@pytest.fixture(scope="module")
def served(weights: Path) -> Iterator[Served]:
    kinds = [Forked, Forked]
    limits = Limits(grace=5.0)
    with serving(weights / "step-0", limits, kinds=kinds, weights_folder=weights) as found:
        yield found


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def update(served: Served, path: str) -> tuple[int, Any]:
    return served.ask("/update_weights_from_disk", {"model_path": path})


def said(served: Served) -> set[str]:
    """What the engines say, each of them asked."""
    with ThreadPoolExecutor(20) as clients:
        asked = [clients.submit(served.ask, ROLLOUT, GREEDY) for _ in range(20)]
        return {each.result()[1]["choices"][0]["text"] for each in asked}


class Running:
    """A request that runs, as its first piece says."""

    def __init__(self, served: Served) -> None:
        self._stream = served.client().completions.create(model=NAME, **LONG, stream=True)
        self._begun = next(iter(self._stream)).choices[0].text

    def rest(self) -> str:
        """Its whole text, when all of it is there."""
        return self._begun + "".join(chunk.choices[0].text for chunk in self._stream)


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
def test_all_engines_take_other_weights(served: Served, texts: dict[str, str]) -> None:
    before = served.ask(ROLLOUT, GREEDY)[1]["system_fingerprint"]
    for name in ("step-1", "step-2", "step-0"):
        assert update(served, name) == (
            200, {"success": True, "message": f"the weights are those of {name}"}
        )  # fmt: skip
        assert said(served) == {texts[name]}
        now = served.ask(ROLLOUT, GREEDY)[1]["system_fingerprint"]
        assert (now == before) == (name == "step-0")


def test_who_waits_meanwhile_is_told_of_the_model_that_answers(
    served: Served, texts: dict[str, str], beside: ThreadPoolExecutor
) -> None:
    before = served.ask(ROLLOUT, GREEDY)[1]["system_fingerprint"]
    assert served.ask("/pause")[0] == 200
    waiting = beside.submit(served.ask, ROLLOUT, GREEDY)
    wait_until(lambda: served.server.api.counts.total("open"))
    time.sleep(0.1)  # until it is read
    assert update(served, "step-1")[0] == 200 and served.ask("/resume")[0] == 200
    answer = waiting.result()[1]
    assert answer["choices"][0]["text"] == texts["step-1"]
    assert answer["system_fingerprint"] != before
    assert update(served, "step-0")[0] == 200


@pytest.mark.slow
def test_what_runs_finishes_first(
    served: Served, weights: Path, texts: dict[str, str], beside: ThreadPoolExecutor
) -> None:
    want = Running(served).rest()
    running = [Running(served) for _ in range(3)]
    changed = beside.submit(update, served, str(weights / "step-1"))  # a whole path does, too
    # Where sums are split depends on what stood, so that late tokens may differ some day.
    assert [each.rest()[:20] for each in running] == [want[:20]] * 3
    assert changed.result()[0] == 200 and said(served) == {texts["step-1"]}
    assert update(served, "step-0")[0] == 200


def other_config(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"rms_norm_eps": 0.1}))


def other_shape(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name][:, :16].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def torn(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_config, "rms_norm_eps is 0.1"),
        (other_shape, "model.layers.1.mlp.up_proj.weight"),
        (torn, "weights"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
    ],
    ids=["config", "shape", "torn", "no config"],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    served: Served, weights: Path, texts: dict[str, str], change: Any, named: str
) -> None:
    folder = weights / "bad"
    shutil.copytree(weights / "step-1", folder)
    try:
        change(folder)
        status, answer = update(served, "bad")
    finally:
        shutil.rmtree(folder)
    message = answer["error"]["message"]
    assert (status, "nothing has changed" in message) == (400, True) and named in message, message
    assert said(served) == {texts["step-0"]}


def test_folders_elsewhere_are_refused(served: Served, weights: Path) -> None:
    (weights / "link").symlink_to(weights.parent / "elsewhere")
    mixed = weights / "mixed"
    mixed.mkdir()
    (mixed / "model.safetensors").symlink_to(weights.parent / "elsewhere" / "model.safetensors")
    (weights / "empty").mkdir()
    try:
        for path in (
            "../elsewhere", str(weights.parent / "elsewhere"), "link", "mixed", ".", "", "empty",
            "missing", "https://host/model", "owner/name", "a\0b", "step-0/config.json",
        ):  # fmt: skip
            status, answer = update(served, path)
            assert (status, answer["error"]["param"]) == (403, "model_path"), (path, answer)
    finally:
        (weights / "link").unlink()
        shutil.rmtree(mixed)
        (weights / "empty").rmdir()
    for body in ({}, {"model_path": 1}, {"model_path": "step-1", "load_format": "auto"}, []):
        assert served.ask("/update_weights_from_disk", body)[0] == 400
    assert served.ask("/update_weights_from_disk", b"{}", Content_Type="text/plain")[0] == 415


@pytest.mark.turn(4)
def test_a_pause_holds_what_runs(served: Served, beside: ThreadPoolExecutor) -> None:
    want = Running(served).rest()
    assert served.ask("/is_paused", method="GET") == (200, {"is_paused": False})
    running = [Running(served) for _ in range(2)]
    assert served.ask("/pause") == (200, {"status": "paused"})
    assert served.ask("/is_paused", method="GET") == (200, {"is_paused": True})
    drawn = served.engines.stats.generated_tokens
    waiting = beside.submit(served.ask, ROLLOUT, GREEDY)
    wait_until(lambda: served.server.loop._at_door)
    if served.engines.has_work:  # else all had ended by then
        status, answer = update(served, "step-1")
        assert (status, answer["error"]["code"]) == (409, "requests_held")
    assert not waiting.done() and served.engines.stats.generated_tokens == drawn
    assert served.ask("/resume") == (200, {"status": "resumed"})
    assert waiting.result()[0] == 200
    assert [each.rest()[:20] for each in running] == [want[:20]] * 2


@pytest.mark.slow
def test_other_pauses_wait_for_what_runs_or_end_it(
    served: Served, texts: dict[str, str], beside: ThreadPoolExecutor
) -> None:
    for mode in ("wait", "abort"):
        running = Running(served)
        assert served.ask("/pause")[0] == 200
        is_held = served.engines.has_work
        assert served.ask(f"/pause?mode={mode}")[0] == 200
        assert not served.engines.has_work
        if mode == "abort" and is_held:
            with pytest.raises(openai.APIError, match="was paused"):
                running.rest()
        else:
            running.rest()
        waiting = beside.submit(served.ask, ROLLOUT, GREEDY)
        wait_until(lambda: served.server.loop._at_door)
        assert update(served, "step-1")[0] == 200  # while it is paused
        assert not waiting.done()
        assert served.ask("/resume")[0] == 200
        assert waiting.result()[1]["choices"][0]["text"] == texts["step-1"]
        assert update(served, "step-0")[0] == 200
    for query in ("mode=stop", "clear_cache=true"):
        assert served.ask(f"/pause?{query}")[0] == 400
    assert served.ask("/pause", Origin="http://evil.example")[0] == 403


@pytest.mark.slow
@pytest.mark.turn(4)
def test_a_client_that_leaves_takes_its_order_with_it(
    served: Served, texts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    running = Running(served)
    connection = served.connection()
    body = json.dumps({"model_path": "step-1"})
    connection.request(
        "POST", "/update_weights_from_disk", body, {"Content-Type": "application/json"}
    )
    wait_until(lambda: served.server.loop._orders.wait or not served.engines.has_work)
    connection.close()
    running.rest()
    # Nothing has changed, unless the request had ended before the client left.
    assert len(said(served)) == 1
    assert update(served, "step-0")[0] == 200
    assert "sharegen: " not in capsys.readouterr().err  # as of a defect


@pytest.mark.slow
def test_a_paused_server_ends(weights: Path) -> None:
    with (
        serving(weights / "step-0", Limits(grace=60), weights_folder=weights) as served,
        ThreadPoolExecutor(1) as beside,
    ):
        running = Running(served)
        assert served.ask("/pause")[0] == 200
        waiting = beside.submit(served.ask, ROLLOUT, GREEDY)
        wait_until(lambda: served.server.loop._at_door)
        served.server.end()
        assert running.rest() and waiting.result()[0] == 200


def test_without_a_folder_there_is_no_trainer(weights: Path, tmp_path: Path) -> None:
    with serving(weights / "step-0", Limits(grace=5)) as served:
        for path in ("/pause", "/resume", "/update_weights_from_disk"):
            status, answer = served.ask(path)
            assert status == 404 and "--weights-folder" in answer["error"]["message"]


def test_a_batch_is_answered_by_one_model(weights: Path, tmp_path: Path) -> None:
    with serving(
        weights / "step-0", Limits(grace=0.1), batch_folder=tmp_path, weights_folder=weights
    ) as served:
        client = served.client()
        body = {"model": NAME, "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "n": 64}
        lines = [{"custom_id": "a", "method": "POST", "url": ROLLOUT, "body": body}]
        file = client.files.create(file=("b.jsonl", json.dumps(lines[0]).encode()), purpose="batch")
        assert served.ask("/pause")[0] == 200
        batch = client.batches.create(
            input_file_id=file.id, endpoint=ROLLOUT, completion_window="24h"
        )
        for ask in (lambda: update(served, "step-1"), lambda: served.ask("/pause?mode=abort")):
            status, answer = ask()
            assert (status, answer["error"]["code"]) == (409, "batch_unfinished")
        assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled")
        wait_until(lambda: update(served, "step-1")[0] == 200)
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_0")
