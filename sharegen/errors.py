"""Everything a user can cause, as one small family of exceptions.

The command line turns a `SharegenError` into one line on stderr and its exit code; library users
catch the base class. Our own broken invariants are `assert`s and never end up here.
"""

from __future__ import annotations


class SharegenError(Exception):
    """A job that failed for a reason the user can act on: what, where, and what to do."""

    exit_code = 1
    request_key: int | None = None
    """The key of the request that it is about, if it is one of many."""


class UsageError(SharegenError):
    """The command or call itself is wrong (unknown recipe, impossible option value)."""

    exit_code = 2


class WeightsMovedError(UsageError):
    """A module's weights lie elsewhere in a GPU's memory than its engine reads them."""


class DataError(SharegenError):
    """A dataset, a row or a file does not hold what the job needs."""


class ModelError(SharegenError):
    """A model or tokenizer cannot be loaded, or the engine refuses it."""


class NoTokenizerError(ModelError):
    """A model comes without a tokenizer."""


class RequestError(SharegenError):
    """One request cannot run (prompt too long, stop strings without a tokenizer)."""


class CapacityError(SharegenError):
    """The KV cache is too small for even one sequence."""


class JournalError(SharegenError):
    """A journal cannot be written or continued (locked, other configuration, disk full)."""


class NothingToDo(SharegenError):
    """A shard has no problem: the job has fewer of them than shards, which is no failure."""

    exit_code = 0
