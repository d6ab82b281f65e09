"""Questions to the Hugging Face hub before its libraries ask, which retry for half a minute.

It is asked by the hub's own client: with its proxy, certificates, token and time-outs.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path


@functools.cache
def hub_is_reachable() -> bool:
    """Ask the hub one quick question, once a process; False too where offline mode is on."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return False
    session = get_session()
    client = importlib.import_module(type(session).__module__.partition(".")[0])  # httpx, httpx2
    try:
        session.head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (client.RequestError, client.InvalidURL):
        return False
    return True


def dataset_commit(name: str, revision: str | None) -> str:
    """The commit that a revision of a dataset on the hub (by default the main one) stands for.

    Raises RepositoryNotFoundError and RevisionNotFoundError of huggingface_hub, or another of its
    HfHubHTTPError.
    """
    from huggingface_hub import HfApi, constants

    found = HfApi().dataset_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    assert found.sha is not None
    return found.sha


def cached_dataset(name: str, revision: str | None) -> Path | None:
    """The folder of a dataset's revision in the hub's local cache, named by its commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns=[],
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder)
