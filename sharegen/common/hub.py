"""Whether the Hugging Face hub answers: asked before its libraries retry for half a minute."""

from __future__ import annotations

import functools
import urllib.error
import urllib.request

_TIMEOUT = 3.0  # seconds


@functools.cache
def hub_is_reachable() -> bool:
    """One quick question, asked once a process; False too where offline mode is on."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    question = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(question, timeout=_TIMEOUT):
            return True
    except urllib.error.HTTPError:  # an answer all the same
        return True
    except (OSError, ValueError):
        return False
