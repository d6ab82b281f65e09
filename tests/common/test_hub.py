"""What the hub is asked: from a cache laid out as its client does, and of a hub that says no."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from sharegen import LLM
from sharegen.common import hub
from sharegen.engine.model.checkpoint.tokenizer import load_tokenizer
from sharegen.engine.model.load import load_model
from sharegen.errors import DataError, ModelError, UsageError
from sharegen.workload.dataset import read_rows
from tests.tiny import save_tiny_model

OLD, NEW = "0" * 40, "1" * 40


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of the hub's client, for this test alone."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # whatever the environment says
    hub.hub_is_reachable.cache_clear()
    yield tmp_path / "hub"
    hub.hub_is_reachable.cache_clear()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def cached(repository: Path, revision: str, commit: str) -> Path:
    """The folder of a revision's files in the cache."""
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    return snapshot


@pytest.mark.usefixtures("offline")
def test_a_dataset_is_read_at_its_revision(own_cache: Path) -> None:
    repository = own_cache / "datasets--owner--name"
    for revision, commit in (("main", OLD), ("v2", NEW)):
        (cached(repository, revision, commit) / "test.jsonl").write_text(f'{{"q": "{revision}"}}\n')
    found = {at: read_rows("owner/name", None, "test", at) for at in ("main", "v2", NEW)}
    assert [row.values for row in found["main"].rows] == [{"q": "main"}]
    assert [row.values for row in found["v2"].rows] == [{"q": "v2"}]
    assert (found["main"].commit, found["v2"].commit) == (OLD, NEW)
    assert found["main"].fingerprint != found["v2"].fingerprint == found[NEW].fingerprint
    with pytest.raises(DataError) as error:
        read_rows("owner/name", None, "test", "v9")
    assert str(error.value) == (
        "--dataset owner/name at revision v9: the hub is not reachable and it is not in the local "
        "cache: give a local file"
    )


@pytest.mark.usefixtures("offline")
def test_a_model_is_loaded_at_its_revision(own_cache: Path, tmp_path: Path) -> None:
    repository = own_cache / "models--owner--name"
    for seed, (revision, commit) in enumerate((("main", OLD), ("v2", NEW))):
        folder = save_tiny_model(tmp_path / str(seed), context=64 + seed)
        shutil.copytree(folder, cached(repository, revision, commit), dirs_exist_ok=True)
    main = load_model("owner/name", "cpu", weights=False)
    other = load_model("owner/name", "cpu", weights=False, revision="v2")
    same = load_model("owner/name", "cpu", weights=False, revision=NEW)
    assert (main.context_length, other.context_length) == (64, 65)
    assert main.fingerprint != other.fingerprint == same.fingerprint
    assert len(load_tokenizer("owner/name", revision="v2"))
    with pytest.raises(ModelError, match="the config of owner/name at revision v9: the hub"):
        load_model("owner/name", "cpu", revision="v9")
    options = {"device": "cpu", "kv_cache_memory": 1 << 20}
    with LLM("owner/name", revision="v2", **options) as llm:  # type: ignore[arg-type]
        assert llm.context_length == 65 and llm.generate("Tom")[0].prompt_token_ids
    with pytest.raises(ModelError, match="the config of owner/name at revision v9: the hub"):
        LLM("owner/name", revision="v9", **options)  # type: ignore[arg-type]


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"revision 'v2' .* is a folder: leave it out"):
        load_model(tmp_path, revision="v2")


class _Hub(BaseHTTPRequestHandler):
    """A hub with one repository of each kind, which has the revision v2 alone."""

    def do_HEAD(self) -> None:
        self.answer(200 if self.path == "/" else 404)

    def do_GET(self) -> None:
        self.answer(200 if self.path.endswith("/owner/name/revision/v2") else 404)

    def answer(self, status: int) -> None:
        body = json.dumps({"id": "owner/name", "sha": NEW}).encode() if status == 200 else b""
        self.send_response(status)
        if status == 404:
            self.send_header("X-Error-Code", "RevisionNotFound")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def small_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("small_hub")
def test_a_revision_that_does_not_exist_is_one_line() -> None:
    assert hub.hub_is_reachable()
    assert hub.dataset_commit("owner/name", "v2") == NEW
    with pytest.raises(DataError) as no_data:
        read_rows("owner/name", None, "test", "v9")
    assert str(no_data.value) == (
        "--dataset owner/name: the hub has no revision v9 of it: give a branch, a tag or a commit "
        "of it, or none for the main one"
    )
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError) as no_model:
            load("owner/name", revision="v9")
        assert str(no_model.value) == (
            "the hub has no revision v9 of owner/name: give a branch, a tag or a commit of it, or "
            "none for the main one"
        )
